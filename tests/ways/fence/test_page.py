"""docs/ways/fence.md: its listings run as they stand, on every database; and what it says of statements."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from producer_sdk import TransactionProducer
from producer_sdk.fence import TransactionFence
from producer_sdk.testing import embedded_broker
from support.patience import HANG
from ways.shops import ORDER, texts

if TYPE_CHECKING:
    from broker.embedded import EmbeddedBroker
    from ways.shops import Shop

PAGE = Path(__file__).parents[3] / "docs" / "ways" / "fence.md"
LISTINGS = re.findall(r"^```python\n(.*?)^```\n", PAGE.read_text(encoding="utf-8"), re.S | re.M)


def test_the_listings_run(shop: Shop) -> None:
    with embedded_broker(["orders"]) as broker:
        url = shop.engine.url.render_as_string(hide_password=False)
        names: dict[str, Any] = {
            "endpoint": broker.endpoint,
            "url": url,
            "async_url": shop.async_url,
            "connect": shop.connect,
        }
        for listing in LISTINGS:
            exec(compile(listing, str(PAGE), "exec"), names)
        names["engine"].dispose()
        assert shop.orders() == texts(broker.endpoint, "orders") == ["chair", "desk", "lamp", "table"]


def _statements(shop: Shop) -> list[str]:
    seen: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        seen.append(statement)

    sa.event.listen(shop.engine, "before_cursor_execute", note)
    return seen


def test_one_more_statement_in_the_local_transaction(shop: Shop, broker: EmbeddedBroker, topic: str) -> None:
    fence = TransactionFence(shop.engine)
    fence.create_tables()
    seen = _statements(shop)
    with TransactionProducer(broker.endpoint, "counting", fence) as producer:
        for number in range(3):
            with Session(shop.engine) as session:
                del seen[:]
                with producer.transaction(session) as tx:
                    tx.send(topic, f"{number}")
                    session.execute(ORDER, {"content": f"{number}"})
                mine = [each for each in seen if not each.startswith("DELETE")]
            if number:  # The first block also reads which table it is.
                found = [" ".join(each.split("(")[0].split()[:2]) for each in mine]
                assert found == ["INSERT INTO", "INSERT INTO"], mine


def test_what_a_plain_connection_runs(shop: Shop, broker: EmbeddedBroker, topic: str) -> None:
    """Counted at its cursors; SQLite's run in the process."""
    fence = TransactionFence(shop.engine)
    fence.create_tables()
    seen: list[str] = []
    connection = shop.connect()
    kind: Any = type(connection.cursor())

    class Counting(kind):  # type: ignore[misc]
        def execute(self, statement: Any, *rest: Any, **options: Any) -> Any:
            seen.append(str(statement).split()[0])
            return super().execute(statement, *rest, **options)

    counted: Any = connection
    if shop.kind == "sqlite":
        pytest.skip("cursors cannot be replaced there")
    elif shop.kind == "postgresql":
        counted.cursor_factory = Counting
    else:
        counted.cursorclass = Counting
    with TransactionProducer(broker.endpoint, "counting", fence) as producer:
        for messages in (1, 2):
            del seen[:]
            with producer.transaction(connection) as tx:
                for number in range(messages):
                    tx.send(topic, f"{number}")
            looks = ["SELECT"] * (messages + 1) if shop.kind == "postgresql" else []
            assert seen == ["INSERT", *looks]
    connection.close()


@pytest.mark.parametrize("module", ["producer_sdk", "producer_sdk.fence", "consumer_sdk", "client_core.local_database"])
def test_the_sdks_load_no_database_library(module: str) -> None:
    program = (
        f"import sys, {module}\n"
        "print(sorted({'sqlalchemy', 'django', 'pymysql', 'psycopg', 'MySQLdb', 'alembic'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=HANG, check=True)
    assert done.stdout.strip() == "[]"
