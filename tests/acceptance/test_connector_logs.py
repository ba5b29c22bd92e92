"""Logs of relays, cdc and bridges: the formats of brokers, with ids as keys."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy.orm import Session

from producer_sdk import Admin, Message
from producer_sdk.outbox import Outbox
from support.connectors import logged, nobody_listens, subscription
from support.patience import HANG
from ways.shops import make_shop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from support.brokers import BrokerProcess


def until(lines: Iterator[str], words: str) -> dict[str, Any]:
    """The first line with these words; it and all before it are JSON."""
    seen = []
    for line in lines:
        seen.append(line)
        entry: dict[str, Any] = json.loads(line)
        if words in entry["event"]:
            return entry
    pytest.fail("\n".join(seen))


@pytest.fixture
def endpoint(new_broker: Callable[..., BrokerProcess]) -> str:
    broker = new_broker("sqlite")
    with Admin(broker.endpoint) as admin:
        admin.create_topic("orders")
    return broker.endpoint


def test_a_relay_names_the_messages_that_it_could_not_send(endpoint: str, tmp_path: Path) -> None:
    with make_shop("sqlite", tmp_path) as shop:
        outbox = Outbox(shop.engine, relay=False)
        outbox.create_tables()
        with Session(shop.engine) as session:
            (own,) = outbox.put_many(session, [Message("no-such-topic", "x")])
            session.commit()
        command = ("relay", f"--database={shop.url}", f"--endpoint={endpoint}", "--log-format=json")
        with logged(*command) as lines:
            begun = until(lines, "relaying the outbox as ")
            told = until(lines, "1 messages are MESSAGE_ERROR")
    assert begun["event"] == f"relaying the outbox as {begun['client_id']}"
    assert (told["level"], told["logger"]) == ("warning", "halfmq.relay")
    assert (told["client_id"], told["message_ids"]) == (begun["client_id"], [own])


def test_cdc_names_its_subscription_in_each_line(endpoint: str, tmp_path: Path) -> None:
    file = tmp_path / "shop.toml"
    file.write_text(subscription(endpoint, nobody_listens()))
    with logged("cdc", str(file), "--log-format=json", environment={"CDC_PASSWORD": "none"}) as lines:
        told = until(lines, "interrupted, on in ")
    assert (told["subscription"], told["level"], told["logger"]) == ("shop", "warning", "halfmq.cdc")


@pytest.mark.parametrize("direction", ["kafka", "from-kafka"])
def test_a_bridge_is_named_in_each_line(endpoint: str, direction: str) -> None:
    arguments = [f"--endpoint={endpoint}", f"--bootstrap-servers={nobody_listens()}", "--name=own", "--topic=orders"]
    with logged("bridge", direction, *arguments, "--log-format=json") as lines:
        told = until(lines, "does not answer")
    assert (told["bridge"], told["level"]) == ("own", "warning")


def test_a_format_that_there_is_not_is_named() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "halfmq_cli", "relay", "--log-format=yaml"],
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG,
    )
    assert (done.returncode, done.stderr) == (2, "halfmq: log-format: is text or json, not 'yaml'\n")
