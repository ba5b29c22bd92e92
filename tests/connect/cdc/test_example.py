"""The file of the page and of examples/ works as it stands, but for its addresses; and the page tells what there is."""

from __future__ import annotations

import re
import tomllib
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from client_core.admin import Admin
from connect.cdc.sources import Capture, CaptureProcess, Topic
from halfmq_connect.cdc.config import TableSettings, settings_of
from halfmq_connect.cdc.outbox import CREATE_OUTBOX

if TYPE_CHECKING:
    from connect.cdc.sources import Source

CHECKOUT = Path(__file__).parents[3]
EXAMPLE = CHECKOUT / "examples" / "ways" / "cdc.toml"
PAGE = CHECKOUT / "docs" / "ways" / "cdc.md"


def test_the_example_publishes(source: Source, endpoint: str, tmp_path: Path) -> None:
    source.run(
        "CREATE TABLE shop.orders (id INT PRIMARY KEY, item VARCHAR(40), note TEXT)",
        f"CREATE TABLE shop.halfmq_cdc_outbox{CREATE_OUTBOX.partition('halfmq_cdc_outbox')[2]}",
        "INSERT INTO shop.orders VALUES (1, 'apple', 'secret')",
    )
    with Admin(endpoint) as admin:
        admin.create_topic("orders", queues=1)
    told = tomllib.loads(EXAMPLE.read_text())
    told["broker"]["endpoint"] = endpoint
    told["database"] |= {"hosts": [source.host], "user": "halfmq"}
    settings = settings_of(told, {"CDC_PASSWORD": "halfmq"})
    with Capture(settings), closing(Topic(endpoint, "orders")) as topic:
        source.run("INSERT INTO shop.halfmq_cdc_outbox (topic, body) VALUES ('orders', '\"from the outbox\"')")
        found = topic.until(lambda found: len(found) >= 2)
    assert [message.tag for message in found] == ["r", None] or [message.tag for message in found] == ["r", ""]
    assert b"secret" not in found[0].body
    told["database"]["password_env"] = "PASSWORD"
    status, out, _ = CaptureProcess(told, tmp_path, "--check").end()
    assert (status, out.split()) == (0, ["shop.halfmq_cdc_outbox", "shop.orders"])


def test_the_page_tells_every_setting_of_a_table() -> None:
    rows = re.findall(r"^\| (`[^|]+`) \|", PAGE.read_text(), re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert {each.name for each in fields(TableSettings)} <= named
