from __future__ import annotations

import asyncio
import gc
import inspect
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from client_core.ids import new_id
from halfmq.v1 import admin_pb2, message_pb2
from producer_sdk import (
    Admin,
    AsyncAdmin,
    BrokerUnavailable,
    ClientClosed,
    Compression,
    ConfigurationError,
    ExhaustedPolicy,
    GroupMode,
    LocalTransactionState,
    RequestRefused,
    RetryConfig,
    SqlFilter,
    TagFilter,
    TimelineEventType,
    TransactionState,
    VerdictSource,
)
from unit.client_core.stub_admin_broker import StubAdminBroker
from unit.producer_sdk.stub_broker import Failure, rich_failure

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
THEN = datetime.fromtimestamp(1_700_000_000, UTC)


class Both:
    """One of the two forms, called as the asynchronous one; iterators give lists."""

    def __init__(self, form: str, endpoint: str) -> None:
        self.client: Any = Admin(endpoint) if form == "sync" else AsyncAdmin(endpoint)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.client, name)

        async def call(*arguments: Any, **options: Any) -> Any:
            if isinstance(self.client, AsyncAdmin):
                made = method(*arguments, **options)
                return await made if inspect.isawaitable(made) else [each async for each in made]

            def in_thread() -> Any:
                made = method(*arguments, **options)
                return list(made) if inspect.isgenerator(made) else made

            return await asyncio.to_thread(in_thread)

        return call


@pytest.fixture
async def operators() -> AsyncIterator[StubAdminBroker]:
    async with StubAdminBroker() as broker:
        yield broker


@pytest.fixture(params=["asyncio", "sync"])
async def admin(request: pytest.FixtureRequest, operators: StubAdminBroker) -> AsyncIterator[Any]:
    both = Both(request.param, operators.endpoint)
    yield both
    await both.close()


def test_both_forms_have_the_same_methods_and_arguments() -> None:
    def public(kind: type) -> dict[str, list[str]]:
        return {
            name: list(inspect.signature(method).parameters)
            for name, method in inspect.getmembers(kind, inspect.isfunction)
            if not name.startswith("_")
        }

    assert public(Admin) == public(AsyncAdmin)
    assert all(getattr(kind, name).__doc__ for kind in (Admin, AsyncAdmin) for name in public(kind))


async def test_topics(admin: Any, operators: StubAdminBroker) -> None:
    made = await admin.create_topic(
        "orders",
        queues=4,
        retention=timedelta(days=2),
        retention_bytes=1 << 40,
        dedup_window=60,
        priority_levels=3,
        compression=Compression.ZSTD,
    )
    assert made.compression is Compression.ZSTD
    assert (made.name, made.queues, made.retention, made.retention_bytes) == ("orders", 4, timedelta(days=2), 1 << 40)
    assert (made.dedup_window, made.priority_levels, made.created_at) == (timedelta(minutes=1), 3, None)
    await admin.create_topic("plain")
    assert operators.requests[-1] == admin_pb2.CreateTopicRequest(topic=admin_pb2.Topic(name="plain"))
    found = await admin.get_topic("orders")
    assert (found.queues, found.retention, found.created_at) == (8, timedelta(hours=1), THEN)
    await admin.update_topic("orders", queues=9, retention_bytes=0)
    changed = operators.requests[-1]
    assert (changed.queue_count, changed.HasField("retention_bytes"), changed.retention_bytes) == (9, True, 0)
    assert not changed.HasField("retention")
    assert changed.compression == admin_pb2.COMPRESSION_UNSPECIFIED
    await admin.update_topic("orders", compression=Compression.NONE)
    assert operators.requests[-1] == admin_pb2.UpdateTopicRequest(
        topic="orders", compression=admin_pb2.COMPRESSION_NONE
    )
    await admin.update_topic("orders", retention=5, dedup_window=timedelta(seconds=6))
    changed = operators.requests[-1]
    assert (changed.HasField("queue_count"), changed.retention.seconds, changed.dedup_window.seconds) == (False, 5, 6)
    assert await admin.delete_topic("orders") is None
    assert operators.requests[-1] == admin_pb2.DeleteTopicRequest(topic="orders")


async def test_groups(admin: Any, operators: StubAdminBroker) -> None:
    made = await admin.create_group(
        "shipping",
        max_attempts=3,
        retry_delays=[1, timedelta(seconds=5), 0.5],
        when_exhausted=ExhaustedPolicy.RETRY,
        mode=GroupMode.BROADCASTING,
        start=NOON,
    )
    assert (made.max_attempts, made.mode, made.when_exhausted) == (3, GroupMode.BROADCASTING, ExhaustedPolicy.RETRY)
    assert made.retry_delays == tuple(timedelta(seconds=each) for each in (1, 5, 0.5))
    assert (made.start, made.filters, made.paused_at) == (NOON, {}, None)
    await admin.create_group("plain")
    assert operators.requests[-1] == admin_pb2.CreateGroupRequest(group=admin_pb2.ConsumerGroup(name="plain"))
    found = await admin.get_group("shipping")
    assert (found.start, found.paused_at, found.pause_reason) == ("latest", THEN, "stop")
    assert found.filters == {"orders": TagFilter("paid"), "audit": SqlFilter("a = 1")}
    await admin.update_group("shipping", retry_delays=())
    changed = operators.requests[-1]
    assert (changed.HasField("retry_delays"), changed.HasField("max_attempts"), changed.when_exhausted) == (
        True,
        False,
        0,
    )
    await admin.update_group("shipping", max_attempts=5, when_exhausted=ExhaustedPolicy.DEAD_LETTER)
    changed = operators.requests[-1]
    assert (changed.max_attempts, changed.HasField("retry_delays"), changed.when_exhausted) == (5, False, 1)
    paused, resumed = await admin.pause_group("shipping", "stop"), await admin.resume_group("shipping")
    assert (paused.paused_at, resumed.paused_at) == (THEN, None)
    assert [(r.resume, r.reason) for r in operators.requests[-2:]] == [(False, "stop"), (True, "")]
    await admin.set_filter("shipping", "orders", TagFilter("paid"))
    assert operators.requests[-1].filter.filter.tags == "paid"
    await admin.set_filter("shipping", "orders", None)
    assert operators.requests[-1].filter.filter.WhichOneof("expression") is None
    await admin.delete_group("shipping")
    assert operators.requests[-1] == admin_pb2.DeleteGroupRequest(group="shipping")


async def test_progress_and_seek(admin: Any, operators: StubAdminBroker) -> None:
    everywhere = await admin.group_progress("shipping")
    assert [(each.topic, each.queue) for each in everywhere] == [("orders", 0), ("orders", 1), ("audit", 0)]
    first, second = await admin.group_progress("shipping", "orders")
    assert (first.committed_offset, first.next_offset, first.max_offset) == (3, 5, 9)
    assert (first.in_flight, first.lag, first.lag_time, second.lag_time) == (2, 6, None, timedelta(seconds=1.5))
    for to, queue in (("earliest", None), ("latest", 0), (NOON, None), (7, 2)):
        (stands,) = await admin.seek_group("shipping", "orders", to, queue=queue)
        assert stands.topic == "orders"
    places = [request.to for request in operators.requests[-4:]]
    assert [place.boundary for place in places[:2]] == [message_pb2.BOUNDARY_EARLIEST, message_pb2.BOUNDARY_LATEST]
    assert (places[2].time.ToDatetime(UTC), places[3].offset) == (NOON, 7)
    assert [request.HasField("queue") for request in operators.requests[-4:]] == [False, True, False, True]


async def test_dead_letters(admin: Any, operators: StubAdminBroker) -> None:
    letters = await admin.list_dead_letters("shipping", filter=TagFilter("paid"))
    assert [letter.message.offset for letter in letters] == list(range(5))
    assert (letters[0].message.topic, letters[0].reason, letters[0].attempts) == ("%DLQ%shipping", "boom", 17)
    assert (letters[0].origin.topic, letters[0].origin.queue, letters[1].origin.offset) == ("orders", 1, 1)
    assert (letters[0].redriven_at, letters[1].redriven_at) == (THEN, None)
    assert [(r.page_token, r.filter.tags) for r in operators.requests] == [("", "paid"), ("a", "paid"), ("b", "paid")]
    steps = await admin.redrive("shipping", filter=SqlFilter("a = 1"), offsets=[3, 1], republish_expired=True)
    assert [(step.examined, step.redriven, step.done) for step in steps] == [(1, 0, False), (2, 1, False), (3, 2, True)]
    assert (steps[0].republished, steps[0].left, steps[0].total) == (1, 0, 3)
    asked = operators.requests[-1]
    assert (asked.filter.sql, list(asked.offsets), asked.republish_expired) == ("a = 1", [3, 1], True)


async def test_messages(admin: Any, operators: StubAdminBroker) -> None:
    own_id = new_id()
    lies, waits = await admin.get_message(own_id), await admin.get_message(f"{own_id}.1")
    assert (lies.state, lies.message.offset, lies.waiting) == (TransactionState.COMMITTED, 7, None)
    assert (waits.message, waits.waiting.text, waits.waiting.dedup_key) == (None, "later", "k")
    assert (waits.scheduled_at, waits.recalled_at) == (datetime.fromtimestamp(1_900_000_000, UTC), None)
    found = await admin.find_messages("orders", key="order-7", since=NOON, until=NOON + timedelta(hours=1))
    assert [message.offset for message in found] == list(range(5))
    asked = operators.requests[-1]
    assert (asked.key, getattr(asked, "from").ToDatetime(UTC)) == ("order-7", NOON)
    assert asked.until.ToDatetime(UTC) == NOON + timedelta(hours=1)
    assert not asked.HasField("queue")
    await admin.find_messages("orders", queue=0, offset=3, filter=TagFilter("paid"))
    asked = operators.requests[-1]
    assert (asked.HasField("queue"), asked.queue, asked.offset, asked.filter.tags) == (True, 0, 3, "paid")
    answered, released, unknown = await admin.timeline(own_id)
    assert (answered.type, answered.happened_at) == (TimelineEventType.CHECK_ANSWERED, THEN)
    assert (answered.group, answered.client_id, answered.number) == ("shop", "me", 2)
    assert (answered.answer, answered.source) == (LocalTransactionState.COMMIT, VerdictSource.CHECK)
    assert (answered.reason, answered.position) == ("it was there", None)
    assert (released.type, released.position.offset, released.answer) == (TimelineEventType.RELEASED, 7, None)
    assert unknown.type is TimelineEventType.UNSPECIFIED


async def test_what_exists_or_is_missing_can_be_taken_for_a_success(admin: Any, operators: StubAdminBroker) -> None:
    exists = rich_failure(grpc.StatusCode.ALREADY_EXISTS, "TOPIC_EXISTS", "topic.name")
    missing = rich_failure(grpc.StatusCode.NOT_FOUND, "TOPIC_NOT_FOUND", "topic")
    refused = rich_failure(grpc.StatusCode.INVALID_ARGUMENT, "NAME_INVALID", "topic.name")
    for create in (admin.create_topic, admin.create_group):
        operators.failures = [exists]
        assert (await create("orders", exist_ok=True)).name == "orders"
        for failure, exist_ok in ((exists, False), (refused, True)):
            operators.failures = [failure]
            with pytest.raises(RequestRefused) as caught:
                await create("orders", exist_ok=exist_ok)
            assert caught.value.field == "topic.name"
    for delete in (admin.delete_topic, admin.delete_group):
        operators.failures = [missing]
        await delete("orders", missing_ok=True)
        operators.failures = [missing]
        with pytest.raises(RequestRefused, match="no") as caught:
            await delete("orders")
        assert caught.value.reason == "TOPIC_NOT_FOUND"


@pytest.mark.parametrize(
    ("method", "arguments", "options", "kind", "name"),
    [
        ("create_topic", [5], {}, ConfigurationError, "topic"),
        ("create_topic", ["t"], {"queues": 0}, ConfigurationError, "queues"),
        ("create_topic", ["t"], {"queues": "3"}, ConfigurationError, "queues"),
        ("create_topic", ["t"], {"queues": 1 << 40}, ConfigurationError, "queues"),
        ("create_topic", ["t"], {"retention": "1d"}, TypeError, "retention"),
        ("update_topic", ["t"], {"dedup_window": -1}, ValueError, "dedup_window"),
        ("update_topic", ["t"], {"retention_bytes": -1}, ConfigurationError, "retention_bytes"),
        ("create_topic", ["t"], {"compression": "zstd"}, ConfigurationError, "compression"),
        ("update_topic", ["t"], {"compression": 2}, ConfigurationError, "compression"),
        ("create_group", [""], {}, ConfigurationError, "group"),
        ("create_group", ["g"], {"retry_delays": 5}, TypeError, "retry_delays"),
        ("create_group", ["g"], {"retry_delays": [1, "2"]}, TypeError, r"retry_delays\[1\]"),
        ("create_group", ["g"], {"mode": "broadcasting"}, ConfigurationError, "mode"),
        ("update_group", ["g"], {"when_exhausted": 1}, ConfigurationError, "when_exhausted"),
        ("create_group", ["g"], {"start": 5}, ConfigurationError, "start"),
        ("seek_group", ["g", "t", 5], {}, ConfigurationError, "an offset needs one queue"),
        ("seek_group", ["g", "t", -5], {"queue": 0}, ConfigurationError, "to"),
        ("seek_group", ["g", "t", None], {"queue": 0}, ConfigurationError, "to"),
        ("seek_group", ["g", "t", "latest"], {"queue": -1}, ConfigurationError, "queue"),
        ("seek_group", ["g", "t", datetime(2026, 1, 1)], {}, ConfigurationError, "time zone"),  # noqa: DTZ001
        ("set_filter", ["g", "t", "paid"], {}, ConfigurationError, "filter"),
        ("pause_group", ["g", 5], {}, TypeError, "reason"),
        ("list_dead_letters", ["g"], {"filter": "paid"}, ConfigurationError, "filter"),
        ("redrive", ["g"], {"offsets": ["1"]}, ConfigurationError, "offsets"),
        ("find_messages", ["t"], {"key": 5}, ConfigurationError, "key"),
        ("find_messages", ["t"], {"since": datetime(2026, 1, 1)}, ValueError, "since"),  # noqa: DTZ001
        ("find_messages", ["t"], {"until": "noon"}, TypeError, "until"),
        ("find_messages", ["t"], {"queue": -1}, ConfigurationError, "queue"),
        ("find_messages", ["t"], {"queue": 0, "offset": "1"}, ConfigurationError, "offset"),
        ("find_messages", ["t"], {"filter": "paid"}, ConfigurationError, "filter"),
        ("get_message", [7], {}, ValueError, "message id"),
        ("timeline", [""], {}, ValueError, "message id"),
    ],
)
async def test_arguments_that_cannot_be_are_refused_by_name(
    admin: Any,
    operators: StubAdminBroker,
    method: str,
    arguments: list[Any],
    options: dict[str, Any],
    kind: type[Exception],
    name: str,
) -> None:
    with pytest.raises(kind, match=name):
        await getattr(admin, method)(*arguments, **options)
    assert not operators.requests


async def test_a_redrive_is_begun_again_until_it_runs_and_can_be_left(operators: StubAdminBroker) -> None:
    quick = RetryConfig(initial_backoff=0.001, maximum_backoff=0.01, deadline=5.0)
    operators.failures = [Failure(grpc.StatusCode.UNAVAILABLE), Failure(grpc.StatusCode.UNAVAILABLE)]
    async with AsyncAdmin(operators.endpoint, retry=quick) as admin:
        operators.redrive_breaks = Failure(grpc.StatusCode.UNAVAILABLE)
        steps = admin.redrive("shipping")
        assert not operators.requests
        assert (await anext(steps)).examined == 1
        assert len(operators.requests) == 3
        with pytest.raises(BrokerUnavailable):
            _ = [step async for step in steps]
        async for _ in admin.redrive("shipping"):
            break
        operators.failures = [rich_failure(grpc.StatusCode.NOT_FOUND, "GROUP_NOT_FOUND", "group")]
        with pytest.raises(RequestRefused) as caught:
            await anext(admin.redrive("nobody"))
        assert caught.value.reason == "GROUP_NOT_FOUND"


async def test_a_closed_admin_refuses_and_ends_what_is_iterated_over(operators: StubAdminBroker) -> None:
    def work() -> None:
        admin = Admin(operators.endpoint)
        found = admin.find_messages("orders")
        assert next(found).offset == 0
        admin.close()
        admin.close()
        with pytest.raises(ClientClosed):
            next(found)
        with pytest.raises(ClientClosed):
            admin.get_topic("orders")
        with Admin(operators.endpoint) as other:
            assert other.get_topic("orders").queues == 8

    await asyncio.to_thread(work)


async def test_an_iterator_that_is_left_may_be_collected_by_any_thread(operators: StubAdminBroker) -> None:
    """Also by that of the client's own loop, in which nothing can wait for it; otherwise that would be a warning."""
    with Admin(operators.endpoint) as admin:
        left = [admin.find_messages("orders")]
        await asyncio.to_thread(next, left[0])

        async def collect() -> None:
            left.clear()

        await asyncio.to_thread(admin._runner.run, collect())
        gc.collect()
        await asyncio.to_thread(admin.get_topic, "orders")
