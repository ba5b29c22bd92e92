"""`outbox.put(session, message)`: the message is sent if the transaction commits, and only then; in each library."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from producer_sdk import ConfigurationError, Message, RequestRefused, TransactionProducer
from producer_sdk.outbox import BrokerTarget, Outbox, OutboxState, RelaySettings
from ways.outbox.fakes import FakeTarget
from ways.outbox.running import relaying, until
from ways.shops import FORMS, ORDER, Shop, Work, make_shop, texts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from broker.embedded import EmbeddedBroker
    from support.databases import LocalKind


@pytest.fixture(params=FORMS)
def work(request: pytest.FixtureRequest, shop: Shop) -> Iterator[Work]:
    """A session or a connection."""
    with FORMS[request.param](shop) as made:
        yield made


def test_it_goes_with_the_transaction(
    shop: Shop, work: Work, outbox: Outbox, broker: EmbeddedBroker, topic: str
) -> None:
    target = BrokerTarget(broker.endpoint)
    with relaying(outbox, target):
        work.write("lamp")
        kept = outbox.put(work.given, Message(topic, "lamp"))
        work.commit()
        work.write("yacht")
        dropped = outbox.put(work.given, Message(topic, "yacht"))
        work.rollback()
        work.write("chair")
        outbox.put_many(work.given, [Message(topic, "chair"), Message(topic, "chair 2")])
        work.commit()
        until(lambda: not outbox.status().counts)
    target.close()
    assert shop.orders() == ["chair", "lamp"]
    assert texts(broker.endpoint, topic) == ["chair", "chair 2", "lamp"]
    assert outbox.state(kept) is outbox.state(dropped) is None


def test_all_of_a_message_is_kept(shop: Shop, outbox: Outbox, broker: EmbeddedBroker, topic: str) -> None:
    later = datetime.now(UTC).replace(microsecond=5) + timedelta(hours=2)
    messages = [
        Message(topic, b"\x00\xff\x27", tag="t'ag", keys=["k:1", "%s"], properties={"näme": "välue %(x)s :y"}),
        Message(topic, "grouped", message_group="grüppe:1%"),
        Message(topic, "later", deliver_at=later),
        Message(topic, "delayed", delay=timedelta(hours=3)),
        Message(topic, "urgent", priority=3, dedup_key="once"),
        Message(topic, "x" * 3_000_000),
    ]
    target = FakeTarget()
    with relaying(outbox, target), Session(shop.engine) as session:
        ids = outbox.put_many(session, messages)
        before = datetime.now(UTC)
        session.commit()
        until(lambda: len(target.stored) == len(messages))
    found = {message.message_id: message for message in target.stored}
    assert set(found) == set(ids)
    got = [found[each] for each in ids]
    assert (got[0].body, got[0].tag, list(got[0].keys), got[0].properties) == (
        b"\x00\xff\x27",
        "t'ag",
        ["k:1", "%s"],
        {"näme": "välue %(x)s :y"},
    )
    assert got[1].message_group == "grüppe:1%"
    assert got[2].deliver_at == later
    # A delay counts from the put on.
    assert got[3].deliver_at is not None
    assert abs(got[3].deliver_at - before - timedelta(hours=3)) < timedelta(minutes=1)
    assert (got[4].priority, got[4].dedup_key) == (3, "once")
    assert got[5].text == "x" * 3_000_000


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (Message("no topic?", "x"), "topic"),
        (Message("", "x"), "topic"),
        (Message("orders", ""), "body"),
        (Message("orders", b"x" * (4 << 20) + b"x"), "body"),
        (Message("orders", "x", message_group="g" * 65), "message_group"),
        (Message("orders", "x", message_group="g\x00"), "message_group"),
        (Message("orders", "x", tag="a|b"), "tag"),
        (Message("orders", "x", properties={"halfmq.x": "1"}), "properties"),
        (Message("orders", "x", properties={"x": "y" * 17_000}), "properties"),
        (Message("orders", "x", keys=[""]), "keys"),
        (Message("orders", "x", dedup_key="k" * 256), "dedup_key"),
    ],
)
def test_what_no_broker_takes_is_refused_at_the_door(message: Message, field: str, tmp_path: Path) -> None:
    with make_shop("sqlite", tmp_path) as shop:
        outbox = Outbox(shop.engine)
        outbox.create_tables()
        with Session(shop.engine) as session:
            with pytest.raises(RequestRefused) as refused:
                outbox.put_many(session, [Message("orders", "good"), message])
            assert refused.value.field == field
            session.commit()
        with pytest.raises(RequestRefused):
            outbox.announce(message)
        assert outbox.status().counts == {}


@pytest.mark.parametrize(
    "message",
    [
        7,
        Message("orders", 7),  # type: ignore[arg-type]
        Message("orders", "x", deliver_at=datetime(2030, 1, 1)),  # noqa: DTZ001
        Message("orders", "x", delay=-1),
    ],
)
def test_wrong_types_are_refused(message: Any, tmp_path: Path) -> None:
    with make_shop("sqlite", tmp_path) as shop, Session(shop.engine) as session:
        outbox = Outbox(shop.engine)
        outbox.create_tables()
        with pytest.raises((TypeError, ValueError)):
            outbox.put(session, message)


def test_what_commits_by_itself_is_refused(shop: Shop, outbox: Outbox, topic: str) -> None:
    engine = shop.engine.execution_options(isolation_level="AUTOCOMMIT")
    with engine.connect() as connection, pytest.raises(ConfigurationError, match="autocommit"):
        outbox.put(connection, Message(topic, "lamp"))
    connection = shop.connect()
    if shop.kind == "sqlite":
        connection.isolation_level = None
    elif shop.kind == "postgresql":
        connection.autocommit = True
    else:
        connection.autocommit(True)
    with pytest.raises(ConfigurationError, match="autocommit"):
        outbox.put(connection, Message(topic, "lamp"))
    connection.cursor().execute("BEGIN")
    outbox.put(connection, Message(topic, "chair"))
    connection.cursor().execute("COMMIT")
    connection.close()
    assert outbox.status().counts == {OutboxState.LOCAL_COMMIT: 1}


def test_savepoints_are_the_users(shop: Shop, outbox: Outbox, topic: str) -> None:
    with shop.engine.begin() as connection:
        connection.execute(ORDER, {"content": "before"})
    with Session(shop.engine) as session:
        outbox.put(session, Message(topic, "outer"))
        with pytest.raises(IntegrityError), session.begin_nested():
            outbox.put(session, Message(topic, "inner"))
            session.execute(ORDER, {"content": "before"})
        session.commit()
    assert outbox.status().counts == {OutboxState.LOCAL_COMMIT: 1}


def test_another_database_is_refused(shop: Shop, kind: LocalKind, topic: str, tmp_path: Path) -> None:
    outbox = Outbox(shop.connect)
    outbox.create_tables()
    with make_shop(kind, tmp_path) as other:
        Outbox(other.engine).create_tables()
        for form in FORMS.values():
            with form(other) as work, pytest.raises(ConfigurationError, match="not the one of the Outbox"):
                outbox.put(work.given, Message(topic, "lamp"))


def test_what_is_no_transaction_is_refused(shop: Shop, outbox: Outbox) -> None:
    with pytest.raises(ConfigurationError, match="an Engine has no transaction"):
        outbox.put(shop.engine, Message("orders", "x"))
    with pytest.raises(ConfigurationError, match="not of int"):
        outbox.put(7, Message("orders", "x"))
    other = sa.create_engine("sqlite:///other.db")
    table = sa.Table("t", sa.MetaData(), sa.Column("a", sa.Integer))
    with Session(shop.engine, binds={table: other}) as session, pytest.raises(ConfigurationError, match="several"):
        outbox.put(session, Message("orders", "x"))


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"table": "no; DROP TABLE orders"}, "table"),
        ({"settings": 7}, "settings"),
        ({"max_body": 0}, "max_body"),
        ({"deadline": "soon"}, "deadline"),
        ({"decide_after": -1}, "decide_after"),
    ],
)
def test_bad_settings_are_named(arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Outbox("sqlite:///x.db", **arguments)
    assert refused.value.field == field


@pytest.mark.parametrize(
    "setting", [{"poll": 0}, {"batch": 0}, {"lease": 1}, {"keep": -1}, {"on_error": "perhaps"}, {"in_flight": 100}]
)
def test_bad_relay_settings_are_named(setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError) as refused:
        RelaySettings(**setting)
    assert refused.value.field == next(iter(setting))


def test_an_id_of_ones_own(shop: Shop, outbox: Outbox, topic: str) -> None:
    own = "018f2a6e-7b1c-7cc3-9b7e-0c1d2e3f4a5b"
    with Session(shop.engine) as session:
        assert outbox.put(session, Message(topic, "lamp", message_id=own)) == own
        session.commit()
        with pytest.raises(IntegrityError):
            outbox.put(session, Message(topic, "chair", message_id=own))


def test_an_id_of_ones_own_that_was_sent_before(shop: Shop, outbox: Outbox, broker: EmbeddedBroker, topic: str) -> None:
    own, store = str(uuid.uuid4()), BrokerTarget(broker.endpoint)
    with relaying(outbox, store):
        for content, state in (("lamp", {}), ("lamp", {}), ("chair", {OutboxState.MESSAGE_ERROR: 1})):
            with Session(shop.engine) as session:
                outbox.put(session, Message(topic, content, message_id=own))
                session.commit()
            until(lambda state=state: outbox.status().counts == state)
        with Session(shop.engine) as session:
            outbox.skip([outbox.errors()[0].id])
            session.execute(sa.text("DELETE FROM halfmq_outbox"))
            outbox.put(session, Message(f"{topic}-other", "lamp", message_id=own))
            session.commit()
        until(lambda: outbox.status().counts == {OutboxState.MESSAGE_ERROR: 1})
    store.close()
    assert texts(broker.endpoint, topic) == ["lamp"]


@pytest.mark.parametrize("size", [1, 2])
def test_a_pool_without_room_beside_the_relay_is_named(shop: Shop, broker: EmbeddedBroker, size: int) -> None:
    engine = sa.create_engine(shop.url, pool_size=1, max_overflow=size - 1)
    decide = (lambda message: message) if size > 1 else None
    outbox = Outbox(engine, decide=decide)
    outbox.create_tables()
    with pytest.raises(ConfigurationError, match="pool_size") as refused:
        TransactionProducer(broker.endpoint, "shop", outbox).start()
    assert refused.value.field == "database"
    relayed_elsewhere = Outbox(engine, decide=decide, relay=False)
    with (
        TransactionProducer(broker.endpoint, "shop", relayed_elsewhere) as producer,
        producer.transaction(engine) as tx,
    ):
        tx.connection.execute(ORDER, {"content": "lamp"})
    engine.dispose()
    assert shop.orders() == ["lamp"]
