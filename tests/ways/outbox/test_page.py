"""docs/ways/outbox.md: its listings run as they stand, on every database; and the SDK loads no database library."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from producer_sdk.outbox import BrokerTarget, Outbox, OutboxState
from producer_sdk.testing import embedded_broker
from support.patience import HANG
from ways.outbox.running import relaying, until
from ways.shops import texts

if TYPE_CHECKING:
    from ways.shops import Shop

PAGE = Path(__file__).parents[3] / "docs" / "ways" / "outbox.md"
LISTINGS = re.findall(r"^```python\n(.*?)^```\n", PAGE.read_text(encoding="utf-8"), re.S | re.M)
SQL = re.findall(r"^```sql\n(.*?)^```\n", PAGE.read_text(encoding="utf-8"), re.S | re.M)


def test_the_listings_run(shop: Shop) -> None:
    with embedded_broker(["orders"]) as broker:
        url = shop.engine.url.render_as_string(hide_password=False)
        names: dict[str, Any] = {
            "endpoint": broker.endpoint,
            "url": url,
            "async_url": shop.async_url,
            "connect": shop.connect,
        }
        for number, listing in enumerate(LISTINGS):
            exec(compile(listing, str(PAGE), "exec"), names)
            if number == 0:  # What the others write is not for the page's own target.
                names["outbox"] = names["Outbox"](names["engine"])
        names["engine"].dispose()
        outbox, target = Outbox(shop.engine), BrokerTarget(broker.endpoint)
        with relaying(outbox, target):
            until(lambda: outbox.status().counts == {OutboxState.UNKNOWN: 1})
        target.close()
        for statement in SQL[0].split(";\n"):
            with shop.engine.connect() as connection:
                if statement.strip():
                    connection.exec_driver_sql(statement)
        assert shop.orders() == ["bench", "chair", "desk", "lamp", "sofa", "table"]
        assert set(texts(broker.endpoint, "orders")) <= {"bench", "chair", "desk", "lamp", "table"}


def test_the_sdk_loads_no_database_library() -> None:
    program = (
        "import sys, producer_sdk.outbox\n"
        "print(sorted({'sqlalchemy', 'django', 'pymysql', 'psycopg', 'MySQLdb', 'alembic'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=HANG, check=True)
    assert done.stdout.strip() == "[]"
