"""The recorder: what is delivered is recorded, whatever happens to it; what it holds, and what is deleted again."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from consumer_sdk import Admin, Consumer, ExhaustedPolicy, GroupMode, TagFilter
from halfmq_connect.reconciliation import (
    BusinessTable,
    Reconciliation,
    ReconciliationSettings,
    recorder,
)
from halfmq_connect.reconciliation.records import Records, pages
from producer_sdk import ConfigurationError
from ways.outbox.running import until
from ways.reconciliation.sales import facts, reconciliation, sell, send
from ways.shops import texts

if TYPE_CHECKING:
    from broker.embedded import EmbeddedBroker
    from client_core.local_database import LocalTransaction
    from ways.shops import Shop


def test_a_recorder_that_is_behind_postpones_the_round(sales: Shop, broker: EmbeddedBroker, created: str) -> None:
    checked = reconciliation(sales, broker, created, settings=ReconciliationSettings(grace=0.0, catch_up=0.0))
    with checked.recording():
        pass
    sell(sales, 1, 2)
    send(broker, created, 1)
    round_ = checked.compare()
    assert round_.window is None
    assert "1 delivered messages" in round_.postponed
    assert texts(broker.endpoint, created) == ['{"amount": "5"}'], "nothing was sent on a guess"


def fail(endpoint: str, group: str, topic: str, times: int) -> None:
    """What recorders that die do to a message, without waiting for their leases' ends."""
    with Consumer(endpoint, group, topic) as consumer:
        for _ in range(times):
            (message,) = consumer.receive(timeout=20)
            message.nack(delay=0.01)


def test_a_recorder_that_dies_again_and_again_sends_nothing_twice(
    sales: Shop, broker: EmbeddedBroker, created: str
) -> None:
    checked = reconciliation(sales, broker, created)
    with checked.recording():
        pass
    with Admin(broker.endpoint) as admin:
        admin.update_group(checked.group, max_attempts=2)
    sell(sales, 1)
    send(broker, created, 1)
    fail(broker.endpoint, checked.group, created, times=2)
    with checked.recording():
        assert checked.compare().findings == ()
    assert len(texts(broker.endpoint, created)) == 1


def test_dead_letters_are_messages_too(sales: Shop, broker: EmbeddedBroker, created: str) -> None:
    checked = reconciliation(sales, broker, created)
    with checked.recording():
        pass
    with Admin(broker.endpoint) as admin:
        admin.update_group(checked.group, max_attempts=1, when_exhausted=ExhaustedPolicy.DEAD_LETTER)
        sell(sales, 1, 2)
        send(broker, created, 1, amount="7")
        fail(broker.endpoint, checked.group, created, times=1)
        assert len(list(admin.list_dead_letters(checked.group))) == 1
        with pytest.raises(ConfigurationError, match="dead letter after 1 attempts"), checked.recording():
            pytest.fail("the group would pass over messages")
        admin.update_group(checked.group, when_exhausted=ExhaustedPolicy.RETRY)
        with checked.recording():
            for repaired in ([("row_without_message", "2", True)], []):
                assert facts(checked.compare().findings) == [("mismatch", "1", False), *repaired]
    assert len(texts(broker.endpoint, created)) == 2


@pytest.mark.parametrize(
    ("settings", "cause"),
    [
        (
            {"when_exhausted": ExhaustedPolicy.DEAD_LETTER},
            "dead letter after 17 attempts; set it by Admin.update_group",
        ),
        ({"keep_unread": False}, "retention deletes what it has not recorded; set it by Admin.update_group"),
        ({"start": "latest"}, "it starts at latest"),
        ({"mode": GroupMode.BROADCASTING}, "it is broadcasting"),
        ({}, "it has a filter"),
    ],
)
def test_a_group_that_would_pass_over_messages_is_refused(
    shop: Shop, broker: EmbeddedBroker, created: str, settings: dict[str, Any], cause: str
) -> None:
    if shop.kind != "sqlite":
        pytest.skip("one database is enough")
    checked = Reconciliation(shop.engine, BusinessTable("orders"), broker.endpoint, created)
    good: dict[str, Any] = {"when_exhausted": ExhaustedPolicy.RETRY, "keep_unread": True, "start": "earliest"}
    with Admin(broker.endpoint) as admin:
        admin.create_group(checked.group, **{**good, **settings})
        if not settings:
            admin.set_filter(checked.group, created, TagFilter("a"))
    with pytest.raises(ConfigurationError, match=cause) as refused, checked.recording():
        pytest.fail("the group would pass over messages")
    assert refused.value.field == "group"


def test_it_runs_by_itself_and_cleans_up(sales: Shop, broker: EmbeddedBroker, created: str) -> None:
    settings = ReconciliationSettings(window=0.5, grace=0.0, every=0.05, keep=0.0)
    checked = reconciliation(sales, broker, created, settings=settings)
    # The first round looks at one window only: from here on all that is sold is looked at, however late the rounds are.
    with checked.recording():
        checked.compare()
    with checked.running():
        for number in range(5):
            sell(sales, number, ago=0.0)
            time.sleep(0.05)
        deadline = time.monotonic() + 20
        while len(texts(broker.endpoint, created)) < 5 or records(sales):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert len(texts(broker.endpoint, created)) == 5


def records(shop: Shop) -> int:
    with shop.engine.connect() as connection:
        return int(connection.execute(sa.text("SELECT COUNT(*) FROM halfmq_delivered")).scalar_one())


def test_two_that_clean_up_at_once_come_to_an_end(sales: Shop, broker: EmbeddedBroker, created: str) -> None:
    """What the other one deletes meanwhile stays visible to a transaction that looked before."""
    if sales.kind == "sqlite":
        pytest.skip("one writer at a time")
    checked = reconciliation(sales, broker, created)
    send(broker, created, *range(20))
    records, later = checked._records, datetime.now(UTC) + timedelta(days=1)

    def found(local: LocalTransaction) -> int:
        return sum(map(len, pages(records, local, later - timedelta(days=2), later)))

    def recorded() -> int:
        with checked._database.transaction() as local:
            return found(local)

    with checked.recording():
        until(lambda: recorded() == 20)
    with checked._database.transaction() as one:
        assert found(one) == 20
        with checked._database.transaction() as other:
            assert records.delete_older(other, later) == 20
        assert records.delete_older(one, later) == 0


def test_a_recorder_that_cannot_write_holds_few_messages(
    sales: Shop, broker: EmbeddedBroker, created: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them may have megabytes."""
    count, most = 3 * recorder.AT_ONCE, 2 * recorder.AT_ONCE
    refused = threading.Semaphore(0)
    real = Records.add

    def refuse(*given: Any) -> None:
        refused.release()
        raise OSError("the table is locked")

    checked = reconciliation(sales, broker, created)
    send(broker, created, *range(count))
    with monkeypatch.context() as patched, Admin(broker.endpoint) as admin:
        patched.setattr(Records, "add", refuse)
        with checked.recording():
            for _ in range(3):
                assert refused.acquire(timeout=30)
            assert 0 < next_offset(admin, checked.group) <= most
            patched.setattr(Records, "add", real)
            while next_offset(admin, checked.group) < count:
                time.sleep(0.05)


def next_offset(admin: Admin, group: str) -> int:
    return sum(queue.next_offset for queue in admin.group_progress(group))
