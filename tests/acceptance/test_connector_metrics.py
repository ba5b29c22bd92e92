"""Metrics of relays, cdc and bridges, in processes as operators start them; and their alerts, whose causes are made."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from producer_sdk import Admin, Message
from producer_sdk.outbox import Outbox
from support.alerts import Scrape, fires
from support.connectors import measured, nobody_listens, subscription
from support.metrics import await_samples, families_of, promtool, text_at, value
from support.patience import HANG
from ways.shops import make_shop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.brokers import BrokerProcess
    from ways.shops import Shop

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
NEVER_BEFORE = Scrape()
"""There was no such program."""


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with make_shop("sqlite", tmp_path) as made:
        yield made


@pytest.fixture
def endpoint(new_broker: Callable[..., BrokerProcess]) -> str:
    broker = new_broker("sqlite")
    with Admin(broker.endpoint) as admin:
        admin.create_topic("orders")
    return broker.endpoint


def put(shop: Shop, *messages: Message) -> None:
    with Session(shop.engine) as session:
        Outbox(shop.engine, relay=False).put_many(session, messages)
        session.commit()


def names_of(text: str) -> set[str]:
    return {name for name in families_of(text) if not name.startswith("process_")}


def shown(section: str) -> set[str]:
    """The metrics that a section of the page names."""
    page = PAGE.read_text().partition(f"## {section}\n")[2].partition("\n## ")[0]
    return set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))


def test_a_relay_tells_what_it_sent_and_what_it_could_not(shop: Shop, endpoint: str, tmp_path: Path) -> None:
    command = ("relay", f"--database={shop.url}", f"--endpoint={endpoint}", "--create-tables", "--lease=2")
    with measured(*command) as at:
        before = Scrape(await_text(at, "halfmq_relay_has_turn"))
        put(shop, Message("orders", "lamp"), Message("orders", "chair"), Message("no-such-topic", "x"))
        found = await_samples(
            at,
            lambda found: (
                value(found, "halfmq_relay_messages_total", outcome="sent") == 2
                and value(found, "halfmq_relay_messages_total", outcome="error") == 1
            ),
            "not relayed",
        )
        assert value(found, "halfmq_relay_has_turn") == value(found, "halfmq_relay_turns_total") == 1
        assert promtool("check", "metrics", given=text_at(at)) == ""
    # Its database is looked at every 15 seconds: another relay looks at once.
    put(shop, Message("also-no-topic", "waits"))
    with measured(*command) as at:
        then = Scrape(await_text(at, "halfmq_outbox_messages"))
        assert names_of(then.text) <= shown("Relays, cdc, bridges")
    fires(tmp_path, "HalfmqOutboxErrors", before, then)


def await_text(at: str, name: str) -> str:
    """The metrics, once they have a value of this one that is not 0."""
    await_samples(at, lambda found: value(found, name) > 0, name)
    return text_at(at)


def test_an_outbox_that_is_not_emptied(shop: Shop, tmp_path: Path) -> None:
    Outbox(shop.engine, relay=False).create_tables()
    put(shop, Message("orders", "lamp"))
    with shop.engine.begin() as connection:
        connection.execute(sa.text("UPDATE halfmq_outbox SET created_at = created_at - 1000000000"))
    with measured("relay", f"--database={shop.url}", f"--endpoint={nobody_listens()}") as at:
        then = Scrape(await_text(at, "halfmq_outbox_oldest_seconds"))
    fires(tmp_path, "HalfmqOutboxOld", NEVER_BEFORE, then)


def test_a_turn_that_a_relay_has_kept_though_it_is_gone(shop: Shop, endpoint: str, tmp_path: Path) -> None:
    command = ("relay", f"--database={shop.url}", f"--endpoint={endpoint}", "--create-tables", "--lease=2")
    with measured(*command) as at:
        before = Scrape(await_text(at, "halfmq_relay_has_turn"))
        with shop.engine.begin() as connection:
            connection.execute(
                sa.text("UPDATE halfmq_outbox_relay SET owner = 'gone', token = token + 1, until_at = 1 << 60")
            )
        await_samples(at, lambda found: value(found, "halfmq_relay_has_turn") == 0, "it has the turn")
        then = Scrape(text_at(at))
    fires(tmp_path, "HalfmqRelayMissing", before, then)


def test_cdc_without_a_database(endpoint: str, tmp_path: Path) -> None:
    file = tmp_path / "shop.toml"
    file.write_text(subscription(endpoint, nobody_listens()))
    with measured("cdc", str(file), environment={"CDC_PASSWORD": "none"}) as at:
        then = Scrape(await_text(at, "halfmq_cdc_interruptions_total"))
        assert promtool("check", "metrics", given=then.text) == ""
    assert names_of(then.text) <= shown("Relays, cdc, bridges")
    fires(tmp_path, "HalfmqCdcNotFollowing", NEVER_BEFORE, then, subscription="shop")


@pytest.mark.parametrize(("command", "direction"), [("kafka", "to_kafka"), ("from-kafka", "from_kafka")])
def test_a_bridge_without_kafka(endpoint: str, tmp_path: Path, command: str, direction: str) -> None:
    arguments = [f"--endpoint={endpoint}", f"--bootstrap-servers={nobody_listens()}", "--name=own", "--topic=orders"]
    with measured("bridge", command, *arguments) as at:
        await_samples(
            at,
            lambda found: (
                (
                    "halfmq_bridge_system_up",
                    frozenset({("bridge", "own"), ("direction", direction), ("system", "kafka")}),
                )
                in found
                and value(found, "halfmq_bridge_system_up", system="kafka") == 0
            ),
            "Kafka answers",
        )
        then = Scrape(text_at(at))
        assert promtool("check", "metrics", given=then.text) == ""
    assert names_of(then.text) <= shown("Relays, cdc, bridges")
    fires(tmp_path, "HalfmqBridgeWaits", NEVER_BEFORE, then, bridge="own", system="kafka", direction=direction)


def test_the_dashboard_shows_nothing_that_is_not_there() -> None:
    file = PAGE.parents[1] / "deploy" / "grafana" / "halfmq-connectors.json"
    used = {
        name
        for panel in json.loads(file.read_text())["panels"]
        for target in panel["targets"]
        for name in re.findall(r"\bhalfmq_\w+", target["expr"])
    }
    assert used <= shown("Relays, cdc, bridges")


def test_a_wrong_address_is_named(shop: Shop) -> None:
    options = [f"--database={shop.url}", "--endpoint=127.0.0.1:1", "--create-tables", "--metrics-listen=9465"]
    done = subprocess.run(
        [sys.executable, "-m", "halfmq_cli", "relay", *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG,
    )
    assert (done.returncode, done.stderr) == (2, "halfmq: metrics-listen: is host:port, such as 127.0.0.1:9465\n")
