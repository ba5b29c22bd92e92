"""docs/ways/reconciliation.md and its example run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from producer_sdk.testing import embedded_broker

if TYPE_CHECKING:
    from ways.shops import Shop

CHECKOUT = Path(__file__).parents[3]
PAGE = CHECKOUT / "docs" / "ways" / "reconciliation.md"
EXAMPLE = CHECKOUT / "examples" / "ways" / "reconcile.py"


def test_the_listing_runs(shop: Shop) -> None:
    (listing,) = re.findall(r"^```python\n(.*?)^```\n", PAGE.read_text(encoding="utf-8"), re.S | re.M)
    with shop.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE orders ADD COLUMN id INT")
        connection.exec_driver_sql("ALTER TABLE orders ADD COLUMN created_at TIMESTAMP")
    rounds = []
    with embedded_broker(["orders"]) as broker:
        names: dict[str, Any] = {
            "url": shop.engine.url.render_as_string(hide_password=False),
            "endpoint": broker.endpoint,
            "serve": lambda: rounds.append(names["reconciliation"].compare()),
        }
        exec(compile(listing, str(PAGE), "exec"), names)
        names["engine"].dispose()
    assert rounds[0].window is not None
    assert rounds[0].findings == ()


def test_the_example_sends_what_is_missing(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'orders.db'}"
    engine = sa.create_engine(database)
    with engine.begin() as connection:
        columns = "id INTEGER PRIMARY KEY, content VARCHAR(100), created_at INTEGER"
        connection.exec_driver_sql(f"CREATE TABLE orders ({columns})")
        insert = sa.text("INSERT INTO orders VALUES (7, 'a lamp', :now)")
        connection.execute(insert, {"now": int(time.time()) - 10})
    engine.dispose()
    with embedded_broker(["orders"]) as broker:
        command = [sys.executable, "-u", str(EXAMPLE), broker.endpoint, database]
        example = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert example.stdout is not None
            assert example.stdout.readline() == "row_without_message: order 7, sent now\n"
        finally:
            example.terminate()
            example.communicate()
