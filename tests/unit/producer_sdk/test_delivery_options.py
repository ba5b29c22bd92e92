from __future__ import annotations

import asyncio
import pickle
from collections import deque
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from client_core.encoding import from_wire, to_wire
from client_core.ids import new_id
from client_core.times import as_duration, as_timestamp, read_span, read_time
from halfmq.v1 import message_pb2
from producer_sdk import (
    AsyncProducer,
    AsyncTransactionProducer,
    BatchRecallRefused,
    BatchRefused,
    BrokerUnavailable,
    DuplicateKey,
    LocalTransactionState,
    LogPosition,
    Message,
    Producer,
    RecallRefused,
    RequestRefused,
    RetryConfig,
    TransactionListener,
    TransactionProducer,
    TransactionRefused,
)
from unit.producer_sdk.stub_broker import SCHEDULED, Failure, StubBroker

if TYPE_CHECKING:
    from producer_sdk import HalfMessages

NOON = datetime(2026, 11, 21, 12, 0, 0, 123456, tzinfo=UTC)
LATER = datetime.fromtimestamp(SCHEDULED, UTC)


class Commits(TransactionListener):
    """Commits everything, and remembers what it was shown."""

    def __init__(self) -> None:
        self.shown: list[Message] = []

    def execute_local_transaction(self, messages: HalfMessages, arg: Any) -> LocalTransactionState:
        self.shown += messages
        return LocalTransactionState.COMMIT

    def check_local_transaction(self, messages: HalfMessages) -> LocalTransactionState:
        self.shown += messages
        return LocalTransactionState.COMMIT


def check_first(message: message_pb2.Message) -> None:
    assert message.deliver_at.ToDatetime(UTC) == NOON
    assert (message.priority, message.dedup_key) == (0, "order-7")


def check_second(message: message_pb2.Message) -> None:
    assert message.delay.ToMilliseconds() == 2_500
    assert (message.priority, message.dedup_key) == (3, "")


FIRST: dict[str, Any] = {"deliver_at": NOON.astimezone(timezone(timedelta(hours=5))), "dedup_key": "order-7"}
SECOND: dict[str, Any] = {"delay": 2.5, "priority": 3}


async def test_options_travel_with_every_way_to_send(stub: StubBroker) -> None:
    listener = Commits()
    messages = [Message("orders", "x", **FIRST), Message("orders", "x", **SECOND)]
    async with AsyncTransactionProducer(stub.endpoint, "g", listener) as producer:
        await producer.send("orders", "x", **FIRST)
        await producer.send("orders", "x", **SECOND)
        await producer.send_many(messages)
        async with producer.transaction() as tx:
            await tx.send("orders", "x", **FIRST)
            await tx.send("orders", "x", **SECOND)
            await tx.send_many(messages)
        await producer.prepare(messages)
        await producer.send_in_transaction(messages)

    def work() -> None:
        with TransactionProducer(stub.endpoint, "g", listener) as blocking:
            blocking.send("orders", "x", **FIRST)
            blocking.send("orders", "x", **SECOND)
            with blocking.transaction() as tx:
                tx.send("orders", "x", **FIRST)
                tx.send("orders", "x", **SECOND)

    await asyncio.to_thread(work)
    sent = [message for request in stub.sends for message in request.messages]
    sent += [m for request in stub.prepares for half in request.transactions for m in half.messages]
    assert len(sent) == 4 + 8 + 4
    for first, second in zip(sent[::2], sent[1::2], strict=True):
        check_first(first)
        check_second(second)
    assert listener.shown == messages


async def test_a_check_shows_what_the_message_was_sent_with(stub: StubBroker) -> None:
    listener = Commits()
    async with AsyncTransactionProducer(stub.endpoint, "g", listener):
        session = await stub.session()
        session.check(new_id())
        await stub.until(lambda: session.answers)
    assert (listener.shown[0].deliver_at, listener.shown[0].delay, listener.shown[0].priority) == (None, None, 0)
    assert listener.shown[0].dedup_key is None
    for options in (FIRST, SECOND):
        back = from_wire(to_wire(Message("orders", b"x", **options)))
        assert back == Message(
            "orders", b"x", **{**options, **({"delay": timedelta(seconds=2.5)} if "delay" in options else {})}
        )


async def test_a_message_without_options_has_none_on_the_wire(stub: StubBroker) -> None:
    async with AsyncProducer(stub.endpoint) as producer:
        await producer.send("orders", "x")
        await producer.send("orders", "x", delay=0)
    first, second = (message for request in stub.sends for message in request.messages)
    assert first.WhichOneof("delivery") is None
    assert second.WhichOneof("delivery") == "delay"


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"deliver_at": datetime(2026, 11, 21, 12)}, ValueError, r"deliver_at .*without a time zone.*astimezone\(\)"),  # noqa: DTZ001
        ({"deliver_at": "noon"}, TypeError, "deliver_at"),
        ({"deliver_at": 5.0}, TypeError, "deliver_at"),
        ({"deliver_at": NOON, "delay": 1}, ValueError, "deliver_at and the delay.*one of them"),
        ({"delay": -1}, ValueError, "delay"),
        ({"delay": timedelta(seconds=-1)}, ValueError, "delay"),
        ({"delay": float("nan")}, ValueError, "delay"),
        ({"delay": float("inf")}, ValueError, "delay"),
        ({"delay": 1e30}, ValueError, "delay"),
        ({"delay": "1"}, TypeError, "delay"),
        ({"delay": True}, TypeError, "delay"),
        ({"priority": -1}, ValueError, "priority"),
        ({"priority": 10}, ValueError, "priority"),
        ({"priority": 1.5}, TypeError, "priority"),
        ({"priority": "1"}, TypeError, "priority"),
        ({"priority": None}, TypeError, "priority"),
        ({"priority": True}, TypeError, "priority"),
        ({"priority": 1, "message_group": "customer-1"}, ValueError, "priority.*message_group"),
        ({"dedup_key": 7}, TypeError, "dedup_key"),
        ({"dedup_key": ""}, ValueError, "dedup_key.*None"),
        ({"dedup_key": "\udc80"}, ValueError, "dedup_key"),
    ],
)
async def test_options_that_cannot_be_are_refused_by_name(
    stub: StubBroker, options: dict[str, Any], kind: type[Exception], text: str
) -> None:
    async with AsyncTransactionProducer(stub.endpoint, "g", Commits()) as producer:
        for call in (
            producer.send("orders", "x", **options),
            producer.send_many([Message("orders", "x"), Message("orders", "x", **options)]),
            producer.prepare(Message("orders", "x", **options)),
            producer.send_in_transaction(Message("orders", "x", **options)),
            producer.transaction().send("orders", "x", **options),
        ):
            with pytest.raises(kind, match=text):
                await call
    with pytest.raises(kind, match=text), Producer(stub.endpoint) as blocking:
        await asyncio.to_thread(blocking.send, "orders", "x", **options)
    assert not stub.sends
    assert not stub.prepares


async def test_a_position_tells_when_a_message_will_be_delivered(stub: StubBroker) -> None:
    async with AsyncTransactionProducer(stub.endpoint, "g") as producer:
        waits = await producer.send("orders", "x", delay=60)
        assert waits == LogPosition("orders", None, None, waits.message_id, scheduled_at=LATER)
        plain = await producer.send("orders", "x")
        assert plain == LogPosition("orders", 0, 0, plain.message_id)
        async with producer.transaction() as tx:
            await tx.send_many([Message("orders", "x"), Message("orders", "x", delay=60)])
    assert tx.result is not None
    lies, waits = tx.result.released
    assert (lies.queue, lies.offset, lies.scheduled_at) == (1, 7, None)
    assert (waits.queue, waits.offset, waits.scheduled_at, waits.recalled_at) == (None, None, LATER, None)
    recalled = message_pb2.LogPosition(topic="orders", message_id="m")
    recalled.recalled_at.FromSeconds(SCHEDULED)
    assert LogPosition.of(recalled) == LogPosition("orders", None, None, "m", recalled_at=LATER)
    of_deleted_topic = message_pb2.LogPosition(offset=-1, message_id="m")
    assert LogPosition.of(of_deleted_topic) == LogPosition("", None, None, "m")


async def test_a_duplicate_says_so_and_names_the_first(stub: StubBroker) -> None:
    async with AsyncProducer(stub.endpoint) as producer:
        first = await producer.send("orders", "x", dedup_key="order-7")
        again, other = await producer.send_many(
            [Message("orders", "x", dedup_key="order-7"), Message("orders", "x", dedup_key="order-8")]
        )
    assert (first.duplicate, again.duplicate, other.duplicate) == (False, True, False)
    assert again.message_id == first.message_id


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("DEDUP_KEY_TAKEN", grpc.StatusCode.ALREADY_EXISTS),
        ("DEDUP_KEY_PENDING", grpc.StatusCode.FAILED_PRECONDITION),
    ],
)
async def test_a_key_of_another_message_is_an_error_of_its_own(
    stub: StubBroker, reason: str, code: grpc.StatusCode
) -> None:
    owner = new_id()
    text = f"Transaction {owner} (PREPARED) has a message with this dedup_key."
    error = message_pb2.ItemError(code=code.value[0], reason=reason, message=text, field="messages[0].dedup_key")
    stub.item_errors["taken"] = stub.item_errors["orders"] = deque([error] * 9)
    async with AsyncTransactionProducer(stub.endpoint, "g") as producer:
        for call in (
            producer.send("taken", "x", dedup_key="k"),
            producer.prepare(Message("taken", "x", dedup_key="k")),
            producer.transaction().send("taken", "x", dedup_key="k"),
        ):
            with pytest.raises(DuplicateKey) as caught:
                await call
            assert not isinstance(caught.value, TransactionRefused)
            assert isinstance(caught.value, RequestRefused)
            assert (caught.value.owner, caught.value.reason, caught.value.code) == (owner, reason, code)
            assert caught.value.field == "messages[0].dedup_key"
            assert pickle.loads(pickle.dumps(caught.value)).owner == owner
        with pytest.raises(BatchRefused) as batch:
            await producer.send_many([Message("taken", "x", dedup_key="k")])
        assert isinstance(batch.value.outcomes[0], DuplicateKey)
    assert DuplicateKey("somebody has it").owner == ""
    assert DuplicateKey(f"{owner}.3 has it, not {owner}", transaction_id=new_id()).owner == f"{owner}.3"


async def test_recall_takes_one_or_several_back(stub: StubBroker) -> None:
    when = datetime.fromtimestamp(1_700_000_000, UTC)
    ids = [new_id() for _ in range(3)]
    async with AsyncProducer(stub.endpoint) as producer:
        assert await producer.recall(ids[0]) == [when]
        assert await producer.recall(one for one in ids) == [when] * 3
        assert await producer.recall([]) == []
    assert [list(request.message_ids) for request in stub.recalls] == [ids[:1], ids]

    def work() -> None:
        with Producer(stub.endpoint) as blocking:
            assert blocking.recall(f"{ids[0]}.1") == [when]
            assert blocking.recall(ids) == [when] * 3

    await asyncio.to_thread(work)


async def test_what_cannot_be_recalled_is_an_error_of_its_own(stub: StubBroker, quick: RetryConfig) -> None:
    ids = [new_id() for _ in range(4)]
    stub.refuse(ids[1], "ALREADY_RELEASED", grpc.StatusCode.FAILED_PRECONDITION)
    stub.refuse(ids[2], "MESSAGE_NOT_FOUND", grpc.StatusCode.NOT_FOUND)
    stub.refuse(ids[3], "STORAGE_UNAVAILABLE", grpc.StatusCode.UNAVAILABLE, times=2)
    async with AsyncProducer(stub.endpoint, retry=quick) as producer:
        with pytest.raises(RecallRefused, match="ALREADY_RELEASED") as alone:
            await producer.recall(ids[1])
        assert (alone.value.message_id, alone.value.reason) == (ids[1], "ALREADY_RELEASED")
        assert pickle.loads(pickle.dumps(alone.value)).message_id == ids[1]
        with pytest.raises(BatchRecallRefused, match="2 of 4 messages were not recalled") as several:
            await producer.recall(ids)
        first, released, missing, late = several.value.outcomes
        assert isinstance(first, datetime)
        # What the broker could not do at first it did when it was asked again.
        assert isinstance(late, datetime)
        assert isinstance(released, RecallRefused)
        assert isinstance(missing, RecallRefused)
        assert (released.message_id, missing.message_id) == (ids[1], ids[2])
        assert (released.reason, missing.reason) == ("ALREADY_RELEASED", "MESSAGE_NOT_FOUND")
        assert len(pickle.loads(pickle.dumps(several.value)).outcomes) == 4


async def test_recall_names_what_is_no_id_and_who_is_not_there(stub: StubBroker) -> None:
    async with AsyncProducer(stub.endpoint, retry=RetryConfig(attempts=1)) as producer:
        for wrong, kind in ((5, TypeError), (None, TypeError), ("", ValueError), ([5], ValueError), ("ü", ValueError)):
            with pytest.raises(kind, match="message"):
                await producer.recall(wrong)  # type: ignore[arg-type]
        assert not stub.recalls
        stub.failures.append(Failure(grpc.StatusCode.UNAVAILABLE))
        with pytest.raises(BrokerUnavailable):
            await producer.recall(new_id())


@given(st.datetimes(timezones=st.timezones(), allow_imaginary=False))
def test_times_travel_exactly(moment: datetime) -> None:
    sent = as_timestamp("deliver_at", moment)
    if moment.astimezone(UTC) != datetime(1970, 1, 1, tzinfo=UTC):
        # In UTC: two equal times of different zones are unequal where the clocks are put back.
        assert read_time(sent) == moment.astimezone(UTC)


@given(st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=3_650_000)))
def test_spans_travel_exactly(span: timedelta) -> None:
    assert read_span(as_duration("delay", span)) == span


@given(st.floats(0, 1e6))
def test_seconds_travel_to_the_nanosecond(seconds: float) -> None:
    assert as_duration("delay", seconds).ToNanoseconds() == round(seconds * 1e9)
