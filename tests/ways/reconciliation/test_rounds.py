"""Self-produced, self-consumed: rows without a message are found and sent, once; nothing is reported in between."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from client_core.local_database import local_database
from consumer_sdk import Admin
from halfmq_connect.reconciliation import (
    BusinessTable,
    Finding,
    Reconciliation,
    ReconciliationSettings,
    comparison,
)
from halfmq_connect.reconciliation import reconciliation as rounds
from halfmq_connect.reconciliation.records import Records
from producer_sdk import BatchRefused, BrokerUnavailable, ConfigurationError, Message, Producer, TransactionProducer
from support.brokers import BrokerProcess
from support.memory import MIB, forget_peak, resident
from ways.reconciliation.sales import SOON, amount_of, facts, made, reconciliation, sell, send
from ways.shops import differences, texts

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from broker.embedded import EmbeddedBroker
    from client_core.local_database import LocalTransaction
    from client_core.message import LogPosition
    from halfmq_connect.reconciliation.business import BusinessRow
    from ways.shops import Shop


def test_a_missing_message_is_found_and_sent_once(sales: Shop, broker: EmbeddedBroker, created: str) -> None:
    told: list[Finding] = []
    checked = reconciliation(sales, broker, created, on_finding=told.append)
    sell(sales, 1, 2, 3)
    send(broker, created, 1, 3)
    sell(sales, 1000)
    with checked.recording():
        first = checked.compare()
        assert first.rows == 3
        assert facts(first.findings) == [("row_without_message", "2", True)]
        assert first.wrong == []
        again = checked.compare()
        assert (again.rows, again.findings) == (3, ())
    assert facts(told) == [("row_without_message", "2", True)]
    assert len(texts(broker.endpoint, created)) == 3


@pytest.mark.parametrize("how", ["Django", "driver"])
def test_connections_of_others(
    sales: Shop, broker: EmbeddedBroker, created: str, how: str, request: pytest.FixtureRequest
) -> None:
    database: Any = sales.connect
    if how == "Django":
        from django.db import connections

        database = connections[request.getfixturevalue("alias")]
    checked = reconciliation(sales, broker, created, database=database)
    sell(sales, 1, 2)
    send(broker, created, 1)
    with checked.recording():
        assert facts(checked.compare().findings) == [("row_without_message", "2", True)]
        assert checked.compare().findings == ()
    assert len(texts(broker.endpoint, created)) == 2


def test_a_repair_has_all_that_make_gives(sales: Shop, broker: EmbeddedBroker, created: str) -> None:
    """So a message that was only late is no second one."""

    def make(row: BusinessRow) -> Message:
        return Message(created, '{"amount": "5.00"}', keys=[row.key], dedup_key=f"sale {row.key}")

    checked = reconciliation(sales, broker, created, make=make)
    sell(sales, 1)
    with checked.recording():
        assert facts(checked.compare().findings) == [("row_without_message", "1", True)]
    with Producer(broker.endpoint) as producer:
        assert producer.send(created, '{"amount": "5"}', keys=["1"], dedup_key="sale 1").duplicate
    assert len(texts(broker.endpoint, created)) == 1


def test_two_that_find_the_same_send_it_once(sales: Shop, broker: EmbeddedBroker, created: str) -> None:
    first, second = (reconciliation(sales, broker, created) for _ in range(2))
    sell(sales, *range(40))
    with first.recording(), second.recording():
        threads = [threading.Thread(target=each.compare) for each in (first, second)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert facts(first.compare().findings) == []
    assert len(texts(broker.endpoint, created)) == 40


def test_a_round_that_breaks_off_tells_what_it_found(
    sales: Shop, broker: EmbeddedBroker, created: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Finding] = []

    def tell(finding: Finding) -> None:
        told.append(finding)
        raise OSError("no paper")

    real = Producer.send_many

    def lose_answers(producer: Producer, messages: Iterable[Message]) -> list[LogPosition]:
        positions = real(producer, messages)
        outcomes = [positions[0], BrokerUnavailable("it was killed"), *positions[2:]]
        raise BatchRefused("some are unknown", outcomes)

    checked = reconciliation(sales, broker, created, on_finding=tell)
    sell(sales, 1, 2, 3)
    with checked.recording():
        monkeypatch.setattr(Producer, "send_many", lose_answers)
        with pytest.raises(BrokerUnavailable):
            checked.compare()
        monkeypatch.setattr(Producer, "send_many", real)
        assert checked.compare().findings == ()
    assert facts(told) == [("row_without_message", each, True) for each in "13"]
    assert len(texts(broker.endpoint, created)) == 3


def test_two_first_rounds_that_both_found_none(sales: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    if sales.kind not in {"mariadb", "mysql"}:
        pytest.skip("others insert first")
    database = local_database(sales.engine)
    records = Records("halfmq_delivered", "sales", database.home)
    with database.transaction() as local:
        records.create(local)
    both, real = threading.Barrier(2), Records.judged_until

    def judged_until(own: Records, local: LocalTransaction) -> datetime | None:
        found = real(own, local)
        both.wait(30)
        return found

    monkeypatch.setattr(Records, "judged_until", judged_until)
    faults: list[Exception] = []

    def end(day: int) -> None:
        try:
            with database.transaction() as local:
                records.judge_until(local, datetime(2026, 1, day, tzinfo=UTC))
        except Exception as error:
            faults.append(error)

    threads = [threading.Thread(target=end, args=(day,)) for day in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert faults == []
    with database.transaction() as local:
        assert real(records, local) == datetime(2026, 1, 2, tzinfo=UTC)


def test_two_first_rounds_end_at_once(sales: Shop, broker: EmbeddedBroker, created: str) -> None:
    first, second = (reconciliation(sales, broker, created) for _ in range(2))
    ends = [datetime(2026, 1, day, tzinfo=UTC) for day in (1, 2)]
    done = threading.Event()

    def end_second() -> None:
        with second._database.transaction() as local:
            second._records.judge_until(local, ends[1])
        done.set()

    with first._database.transaction() as local:
        first._records.judge_until(local, ends[0])
        thread = threading.Thread(target=end_second)
        thread.start()
        assert not done.wait(0.3)
    thread.join(20)
    assert done.is_set()
    with first._database.transaction() as local:
        assert first._records.judged_until(local) in ends


def test_without_a_way_to_make_messages_it_only_tells(sales: Shop, broker: EmbeddedBroker, created: str) -> None:
    told: list[Finding] = []
    checked = reconciliation(sales, broker, created, make=None, on_finding=told.append)
    sell(sales, 1)
    with checked.recording():
        for _ in range(2):
            assert facts(checked.compare().wrong) == [("row_without_message", "1", False)]
    assert len(told) == 1, "once in a process"
    assert texts(broker.endpoint, created) == []


def test_what_else_can_be_wrong(sales: Shop, broker: EmbeddedBroker, created: str) -> None:
    checked = reconciliation(sales, broker, created)
    sell(sales, 1, 2, 3, ago=0.0)
    send(broker, created, 1, 2, 3, 4)
    send(broker, created, 2)
    send(broker, created, 3, amount="5.01")
    with Producer(broker.endpoint) as producer:
        producer.send(created, '{"amount": 1}')
    with checked.recording():
        time.sleep(0.01)
        found = checked.compare()
    assert facts(found.findings) == [
        ("duplicate", "2", False),
        ("duplicate", "3", False),
        ("message_without_row", "", False),
        ("message_without_row", "4", False),
        ("mismatch", "3", False),
    ]
    (mismatch,) = [each for each in found.findings if each.kind == "mismatch"]
    assert mismatch.details == {"amount": {"row": "5.00" if sales.kind != "sqlite" else "5", "message": "5.01"}}


def test_a_row_with_a_half_message_is_in_doubt(sales: Shop, broker: EmbeddedBroker, created: str) -> None:
    checked = reconciliation(sales, broker, created)
    sell(sales, 1)
    # Without a listener nobody answers checks.
    with TransactionProducer(broker.endpoint, f"of-{created}") as producer:
        prepared = producer.prepare(Message(created, '{"amount": "5"}', keys=["1"]))
        with checked.recording():
            found = checked.compare()
            assert facts(found.findings) == [("in_doubt", "1", False)]
            assert found.wrong == []
        producer.commit(prepared.transaction_id)
    with checked.recording():
        assert checked.compare().findings == ()


def test_what_is_young_or_old_is_not_compared(sales: Shop, broker: EmbeddedBroker, created: str) -> None:
    settings = ReconciliationSettings(window=60.0, grace=20.0, catch_up=20.0)
    checked = reconciliation(sales, broker, created, settings=settings)
    sell(sales, 1, ago=1.0)
    sell(sales, 2, ago=30.0)
    sell(sales, 3, ago=90.0)
    with checked.recording():
        found = checked.compare()
    assert facts(found.findings) == [("row_without_message", "2", True)]
    assert found.window is not None
    assert timedelta(seconds=39) < found.window.end - found.window.start < timedelta(seconds=41)


def test_what_retention_took_is_not_compared(
    sales: Shop, broker: EmbeddedBroker, created: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ReconciliationSettings(window=60.0, grace=20.0, catch_up=20.0)
    checked = reconciliation(sales, broker, created, settings=settings)
    monkeypatch.setattr(rounds, "kept_since", lambda *_: _[-1] - timedelta(seconds=1))
    with checked.recording():
        found = checked.compare()
    assert found.window is None
    assert "Retention took messages up to" in found.postponed


def test_after_a_pause_it_goes_on_where_it_was(sales: Shop, broker: EmbeddedBroker, created: str) -> None:
    checked = reconciliation(sales, broker, created, settings=ReconciliationSettings(window=0.2, grace=0.0))
    with checked.recording():
        checked.compare()
    sell(sales, 1, ago=0.0)
    time.sleep(0.4)
    with checked.recording():
        assert facts(checked.compare().findings) == [("row_without_message", "1", True)]


def test_a_row_whose_message_cannot_be_sent_holds_up_no_other(
    sales: Shop, broker: EmbeddedBroker, created: str
) -> None:
    def make(row: BusinessRow) -> Message:
        body, keys = "x", [row.key]
        if row.key == "1":
            raise KeyError("price")
        if row.key == "2":
            keys = ["other"]
        if row.key == "3":
            body = ""
        if row.key == "4":
            return Message(created, body, keys=keys, properties={"a": 7})  # type: ignore[dict-item]
        return Message(created, body, keys=keys)

    checked = reconciliation(sales, broker, created, make=make, compare={})
    sell(sales, 1, 2, 3, 4, 5, 6)
    with checked.recording():
        found = checked.compare()
        assert facts(found.findings) == [
            *(("row_without_message", each, False) for each in "1234"),
            *(("row_without_message", each, True) for each in "56"),
        ]
        errors = {each.key: str(each.details.get("error")) for each in found.findings}
        assert "price" in errors["1"]
        assert "would not recognise it" in errors["2"]
        assert "body is empty" in errors["3"]
        assert facts(checked.compare().findings) == [("row_without_message", each, False) for each in "1234"]
    assert texts(broker.endpoint, created) == ["x", "x"]


def test_messages_that_cannot_be_read_hold_up_no_other(sales: Shop, broker: EmbeddedBroker, created: str) -> None:
    checked = reconciliation(
        sales, broker, created, message_key=lambda message: json.loads(message.body)["id"], compare={}, make=None
    )
    sell(sales, 1, 2)
    with Producer(broker.endpoint) as producer:
        for body in ("no JSON", '{"id": "\\ud800"}', '{"id": "\\u0000"}', '{"id": "abc"}', '{"id": 1}'):
            producer.send(created, body)
        for time_ in ("0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "soon"):
            producer.send(created, '{"id": "2"}', properties={"business_time": time_})
    time.sleep(0.01)
    with checked.recording():
        found = checked.compare()
    kinds = {(each.kind, each.key) for each in found.findings}
    assert {("duplicate", "2"), ("message_without_row", ""), ("message_without_row", "abc")} <= kinds
    assert not [each for each in found.findings if each.kind == "row_without_message"]


def test_each_way_makes_the_same_tables(sales: Shop, broker: EmbeddedBroker, topic: str) -> None:
    checked = reconciliation(sales, broker, topic)
    metadata = sa.MetaData()
    checked.add_tables(metadata)
    sa.Table("sales", metadata, autoload_with=sales.engine)
    assert differences(sales, metadata) == []
    with sales.engine.begin() as connection:
        for name in ("halfmq_delivered", "halfmq_delivered_state"):
            connection.exec_driver_sql(f"DROP TABLE {name}")
        for statement in checked.sql(sales.kind).split(";"):
            connection.exec_driver_sql(statement)
    assert differences(sales, metadata) == []


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"compare": {"price": amount_of}}, "compare"),
        ({"record_table": "a b"}, "table"),
    ],
)
def test_settings_that_cannot_work_are_named(
    sales: Shop, broker: EmbeddedBroker, topic: str, settings: dict[str, Any], field: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        reconciliation(sales, broker, topic, **settings)
    assert refused.value.field == field


def test_a_time_that_is_none_is_named(sales: Shop, broker: EmbeddedBroker, created: str) -> None:
    sell(sales, 1)
    table = BusinessTable("sales", key="id", time="id")
    checked = Reconciliation(sales.engine, table, broker.endpoint, created, settings=SOON)
    checked.create_tables()
    with checked.recording(), pytest.raises(ConfigurationError, match="name its time_unit"):
        checked.compare()
    for wrong in ({"time_unit": "days"}, {"key": ""}):
        with pytest.raises(ConfigurationError):
            BusinessTable("sales", **wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="no row would be compared"):
        ReconciliationSettings(window=1.0, grace=2.0)


def test_half_messages_are_read_once_and_a_few_at_a_time(
    sales: Shop, created: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if sales.kind != "sqlite":
        pytest.skip("one database is enough")
    body, count, pages = os.urandom(2 * MIB), 40, 4
    broker = BrokerProcess(f"sqlite:///{tmp_path / 'broker.db'}", auto_create=True)
    asked: list[str] = []
    real = comparison.halves_of_topic

    def counted(link: Any, topic: str) -> Any:
        asked.append(topic)
        return real(link, topic)

    monkeypatch.setattr(comparison, "halves_of_topic", counted)
    try:
        with Admin(broker.endpoint) as admin:
            admin.create_topic(created)
        with TransactionProducer(broker.endpoint, "shop") as producer:
            for number in range(count):
                producer.prepare(Message(created, body, keys=[str(number)]))
        sell(sales, *range(pages * 500 - 100))
        table = BusinessTable("sales", key="id", time="at", columns=["amount"])
        checked = Reconciliation(
            sales.engine, table, broker.endpoint, created, settings=SOON, on_finding=lambda _: None
        )
        checked.create_tables()
        with checked.recording():
            forget_peak(os.getpid())
            before = resident(os.getpid())
            done = checked.compare()
            grown = resident(os.getpid(), peak=True) - before
    finally:
        broker.close()
    assert done.rows == pages * 500 - 100
    kinds = Counter(finding.kind for finding in done.findings)
    assert kinds == {"in_doubt": count, "row_without_message": done.rows - count}
    assert asked == [created]
    # 80 MiB of bodies; some are read at a time, each in some copies.
    assert grown < 70 * MIB


@pytest.mark.parametrize(
    ("wrong", "cause"),
    [
        ({"name": "nowhere"}, "nowhere"),
        ({"key": "number"}, "number"),
        ({"time": "written"}, "written"),
        ({"columns": ["colour"]}, "colour"),
        ({"where": "id >"}, "id >"),
    ],
)
def test_a_business_table_that_is_described_wrongly(
    sales: Shop, broker: EmbeddedBroker, topic: str, wrong: dict[str, Any], cause: str
) -> None:
    table = BusinessTable(**{"name": "sales", "key": "id", "time": "at", "columns": ["amount"], **wrong})
    reconciliation = Reconciliation(sales.engine, table, broker.endpoint, topic, make=made(topic), settings=SOON)
    reconciliation.create_tables()
    with Admin(broker.endpoint) as admin:
        admin.create_topic(topic)
    with reconciliation.running(), pytest.raises(ConfigurationError, match="cannot be read") as raised:
        reconciliation.compare()
    assert raised.value.field == "table"
    assert cause in str(raised.value)


def test_columns_of_a_business_table_are_a_list() -> None:
    with pytest.raises(ConfigurationError, match="such as \\['amount'\\]") as raised:
        BusinessTable("sales", columns="amount")
    assert raised.value.field == "columns"


def test_records_that_have_no_table(sales: Shop, broker: EmbeddedBroker, topic: str) -> None:
    with Admin(broker.endpoint) as admin:
        admin.create_topic(topic)
    table = BusinessTable("sales", key="id", time="at", columns=["amount"])
    reconciliation = Reconciliation(sales.engine, table, broker.endpoint, topic, make=made(topic), settings=SOON)
    with pytest.raises(ConfigurationError, match=r"create_tables\(\)") as raised:
        reconciliation.compare()
    assert raised.value.field == "table"
