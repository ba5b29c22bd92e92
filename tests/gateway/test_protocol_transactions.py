"""EndTransaction, and the questions about transactions on telemetry streams."""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from typing import TYPE_CHECKING

import pytest

from acceptance.client import COMMIT, COMMITTED, PARKED, PATIENCE, PREPARED, ROLLBACK, ROLLED_BACK, UNKNOWN
from broker.rocketmq.protocol import Code, definition_pb2
from halfmq.v1 import admin_pb2, transaction_pb2
from support.rocketmq_protocol import TIMES, Encoding, Language, Resolution, Source, Type, half, new_message_id, unique

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Connect = Callable[..., "RawClient"]

    from acceptance.client import Client
    from support.rocketmq_protocol import RawClient, Telemetry

pytest_plugins = ["support.rocketmq_fixtures"]

BY_PRODUCER = transaction_pb2.VERDICT_SOURCE_PRODUCER
BY_CHECK = transaction_pb2.VERDICT_SOURCE_CHECK
UNKNOWN_ID = "018f2a6e-7b1c-7cc3-9b7e-0c1d2e3f4a5b"
OPPOSITE = {Resolution.COMMIT: Resolution.ROLLBACK, Resolution.ROLLBACK: Resolution.COMMIT}
STATE = {Resolution.COMMIT: COMMITTED, Resolution.ROLLBACK: ROLLED_BACK}


def official(transaction_id: str) -> str:
    """A transaction's id as a client names messages."""
    return f"01{transaction_id.replace('-', '').upper()}"


async def asked(stream: Telemetry, ids: Iterable[str]) -> None:
    """Waits until each of these transactions was asked about on a stream."""
    left = set(ids)
    while left:
        left.discard((await stream.next_check()).transaction_id)


async def checks_of(native: Client, *ids: str) -> list[transaction_pb2.CheckRecord]:
    """The checks of these transactions, when it is noted of each whom it went to."""
    async with asyncio.timeout(PATIENCE):
        while True:
            found = [check for each in ids for check in (await native.transaction(each)).checks]
            if all(check.client_id for check in found):
                return found
            await asyncio.sleep(0.05)


async def bodies(client: RawClient, native: Client, topic: str) -> list[bytes]:
    """The messages of a topic that are there now."""
    return [each.body for each in (await client.receive(await native.make_group(), topic)).messages]


@pytest.mark.parametrize("resolution", [Resolution.COMMIT, Resolution.ROLLBACK])
@pytest.mark.parametrize("source", [Source.SOURCE_CLIENT, Source.SOURCE_UNSPECIFIED])
@pytest.mark.parametrize(
    "written",
    [str, official, lambda i: official(i).lower(), lambda i: i.replace("-", "").upper()],
    ids=["UUID", "name", "name in lower case", "digits"],
)
async def test_a_verdict_names_the_transaction_in_any_form(
    raw: RawClient, native: Client, resolution: int, source: int, written: Callable[[str], str]
) -> None:
    topic = await native.make_topic()
    transaction = await raw.prepare(topic, "half")
    assert await raw.end(written(transaction), resolution, source) == Code.OK
    # Again, as after an answer that was lost.
    assert await raw.end(written(transaction), resolution, source) == Code.OK
    found = await native.transaction(transaction)
    assert (found.state, found.op.source) == (STATE[resolution], BY_PRODUCER)
    assert await bodies(raw, native, topic) == ([b"half"] if resolution == Resolution.COMMIT else [])


@pytest.mark.parametrize(
    "text", ["", " ", "\t\n", "x", "01", "0" * 35, "0" * 33, "ü" * 32, f"{UNKNOWN_ID}-", "a" * 9999]
)
@pytest.mark.parametrize("source", Source.values())
async def test_what_is_no_id_is_refused(raw: RawClient, text: str, source: int) -> None:
    assert await raw.end(text, Resolution.COMMIT, source) == Code.INVALID_TRANSACTION_ID


async def test_a_transaction_that_nobody_knows_is_refused(raw: RawClient) -> None:
    for name in (str(uuid.uuid4()), new_message_id()):
        for resolution in STATE:
            assert await raw.end(name, resolution) == Code.INVALID_TRANSACTION_ID
            # An answer that comes years too late is none of its client's errors.
            assert await raw.end(name, resolution, Source.SOURCE_SERVER_CHECK) == Code.OK


@pytest.mark.parametrize("source", Source.values())
@pytest.mark.parametrize("resolution", [Resolution.TRANSACTION_RESOLUTION_UNSPECIFIED, 77])
async def test_no_resolution_decides_nothing(raw: RawClient, native: Client, source: int, resolution: int) -> None:
    topic = await native.make_topic()
    transaction = await raw.prepare(topic)
    assert await raw.end(transaction, resolution, source) == Code.OK
    assert await raw.end(str(uuid.uuid4()), resolution, source) == Code.OK
    assert (await native.transaction(transaction)).state == PREPARED
    assert await raw.end(transaction, Resolution.ROLLBACK) == Code.OK


@pytest.mark.parametrize("first", STATE)
@pytest.mark.parametrize("source", [Source.SOURCE_CLIENT, Source.SOURCE_UNSPECIFIED, 9])
async def test_a_verdict_never_changes(raw: RawClient, native: Client, first: int, source: int) -> None:
    topic = await native.make_topic()
    transaction = await raw.prepare(topic, "half")
    assert await raw.end(transaction, first) == Code.OK
    assert await raw.end(transaction, OPPOSITE[first], source) == Code.INVALID_TRANSACTION_ID
    assert (await native.transaction(transaction)).state == STATE[first]
    assert await bodies(raw, native, topic) == ([b"half"] if first == Resolution.COMMIT else [])


async def test_a_verdict_is_every_clients_to_give(raw: RawClient, native: Client, connect_raw: Connect) -> None:
    """Clients send it to the broker that they know, under a name that may be new, or without one."""
    topic = await native.make_topic()
    for client in (connect_raw(), connect_raw("")):
        assert await client.end(await raw.prepare(topic, "half")) == Code.OK
    assert await bodies(raw, native, topic) == [b"half", b"half"]


async def test_a_client_without_a_name_can_have_transactions(native: Client, connect_raw: Connect) -> None:
    topic, nameless = await native.make_topic(), connect_raw("")
    transaction = await nameless.prepare(topic, "half")
    stream = await connect_raw().as_producer(topic)
    assert (await stream.check_of(transaction)).message.body == b"half"
    assert await nameless.end(transaction) == Code.OK


async def test_a_question_has_all_of_the_half_message(raw: RawClient, native: Client) -> None:
    topic = await native.make_topic()
    stream = await raw.as_producer(topic)
    sent = half(topic, b"\x00\xff", tag="T", keys=["a", "b"], properties={"x": "y"}, message_group="g", born_host="h")
    (entry,) = (await raw.send(sent)).entries
    question = await stream.check_of(entry.transaction_id)
    asked_about = question.message
    assert (asked_about.topic.name, asked_about.topic.resource_namespace) == (topic, "")
    assert (asked_about.body, dict(asked_about.user_properties)) == (b"\x00\xff", {"x": "y"})
    own = asked_about.system_properties
    assert own.message_id == entry.message_id == sent.system_properties.message_id
    assert (own.tag, list(own.keys), own.message_group, own.born_host) == ("T", ["a", "b"], "g", "h")
    assert (own.message_type, own.body_encoding) == (Type.TRANSACTION, Encoding.IDENTITY)
    assert own.body_digest.type == definition_pb2.DigestType.MD5
    assert own.body_digest.checksum == hashlib.md5(b"\x00\xff").hexdigest().upper()
    assert own.delivery_attempt == 1
    assert own.born_timestamp.seconds > 0
    assert not own.HasField("receipt_handle")
    assert await raw.end(question.transaction_id, Resolution.ROLLBACK, Source.SOURCE_SERVER_CHECK) == Code.OK


@pytest.mark.parametrize("name", ["free form", new_message_id().lower()], ids=["free", "lower case"])
async def test_a_question_has_the_name_that_its_client_gave(raw: RawClient, native: Client, name: str) -> None:
    topic, name = await native.make_topic(), name if name.startswith("01") else unique(name)
    stream = await raw.as_producer(topic)
    transaction = await raw.prepare(topic, message_id=name)
    question = await stream.check_of(transaction)
    assert question.message.system_properties.message_id == name
    assert await raw.end(question.transaction_id, Resolution.ROLLBACK) == Code.OK


SOURCES = [Source.SOURCE_SERVER_CHECK, Source.SOURCE_UNSPECIFIED]
"""Of an answer to a check: three of the official clients never say."""


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("resolution", STATE)
async def test_an_answer_is_kept_with_its_check(raw: RawClient, native: Client, source: int, resolution: int) -> None:
    topic = await native.make_topic()
    stream = await raw.as_producer(topic)
    transaction = await raw.prepare(topic)
    await stream.check_of(transaction)
    assert await raw.end(transaction, resolution, source) == Code.OK
    found = await native.transaction(transaction)
    assert (found.state, found.op.source) == (STATE[resolution], BY_CHECK)
    checks = await checks_of(native, transaction)
    # A slow machine asks more than once.
    (answered,) = [check for check in checks if check.HasField("answered_at")]
    assert answered.verdict == (COMMIT if resolution == Resolution.COMMIT else ROLLBACK)
    assert (answered.client_id, answered.broker_id) == (raw.client_id, "raw")
    assert [check.check_number for check in checks] == list(range(1, found.check_count + 1))


@pytest.mark.parametrize("source", SOURCES)
async def test_an_answer_that_does_not_know_is_kept_and_the_next_check_follows(
    raw: RawClient, native: Client, source: int
) -> None:
    topic = await native.make_topic()
    stream = await raw.as_producer(topic)
    transaction = await raw.prepare(topic)
    for _ in range(3):
        await stream.check_of(transaction)
        assert await raw.end(transaction, Resolution.TRANSACTION_RESOLUTION_UNSPECIFIED, source) == Code.OK
    await stream.check_of(transaction)
    found = await native.transaction(transaction)
    assert found.state == PREPARED
    answers = [check.verdict for check in found.checks if check.HasField("answered_at")]
    assert len(answers) >= 2, "an answer that comes after the next check counts for that one"
    assert set(answers) == {UNKNOWN}
    assert await raw.end(transaction, Resolution.COMMIT, source) == Code.OK
    assert (await native.transaction(transaction)).state == COMMITTED


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("resolution", STATE)
@pytest.mark.parametrize("by_operator", [True, False])
async def test_an_answer_that_comes_too_late_is_ok_and_changes_nothing(
    raw: RawClient, native: Client, connect_raw: Connect, source: int, resolution: int, by_operator: bool
) -> None:
    """There are clients that end when it is refused."""
    topic = await native.make_topic()
    stream = await raw.as_producer(topic)
    transaction = await raw.prepare(topic, "half")
    await stream.check_of(transaction)
    if by_operator:
        await (native.commit if resolution == Resolution.COMMIT else native.roll_back)([transaction])
    else:
        assert await connect_raw().end(transaction, resolution) == Code.OK
    assert await raw.end(transaction, OPPOSITE[resolution], source) == Code.OK
    assert (await native.transaction(transaction)).state == STATE[resolution]
    assert await bodies(raw, native, topic) == ([b"half"] if resolution == Resolution.COMMIT else [])


async def test_what_is_no_answer_is_told_of_a_conflict(raw: RawClient, native: Client, connect_raw: Connect) -> None:
    topic = await native.make_topic()
    stream = await raw.as_producer(topic)
    transaction = await raw.prepare(topic)
    await stream.check_of(transaction)
    other = connect_raw()
    assert await other.end(transaction, Resolution.ROLLBACK, Source.SOURCE_UNSPECIFIED) == Code.OK
    assert (await native.transaction(transaction)).op.source == BY_PRODUCER
    refused = Code.INVALID_TRANSACTION_ID
    # Another client was asked; this one says that it is no answer; and what is answered once has its answer.
    assert await other.end(transaction, Resolution.COMMIT, Source.SOURCE_UNSPECIFIED) == refused
    assert await raw.end(transaction, Resolution.COMMIT, Source.SOURCE_CLIENT) == refused
    assert await raw.end(transaction, Resolution.COMMIT, Source.SOURCE_UNSPECIFIED) == Code.OK
    assert await raw.end(transaction, Resolution.COMMIT, Source.SOURCE_UNSPECIFIED) == refused
    assert (await native.transaction(transaction)).state == ROLLED_BACK


async def test_an_answer_may_come_by_itself(raw: RawClient, native: Client, connect_raw: Connect) -> None:
    """Before any check, or through a broker that did not ask."""
    topic = await native.make_topic()
    transaction = await raw.prepare(topic, recovery=3600)
    assert await connect_raw().end(transaction, Resolution.COMMIT, Source.SOURCE_SERVER_CHECK) == Code.OK
    found = await native.transaction(transaction)
    assert (found.state, found.check_count, list(found.checks)) == (COMMITTED, 0, [])


async def test_after_the_last_check_a_transaction_is_parked(raw: RawClient, native: Client) -> None:
    topic = await native.make_topic()
    stream = await raw.as_producer(topic)
    transaction = await raw.prepare(topic, "half")
    unanswered = await raw.prepare(topic, "unanswered")
    most = TIMES["max_checks"]
    numbers = {transaction: 0, unanswered: 0}
    while min(numbers.values()) < most:
        question = await stream.next_check()
        numbers[question.transaction_id] += 1
        if question.transaction_id == transaction:
            resolution = Resolution.TRANSACTION_RESOLUTION_UNSPECIFIED
            assert await raw.end(transaction, resolution, Source.SOURCE_UNSPECIFIED) == Code.OK
    async with asyncio.timeout(PATIENCE):
        for each in numbers:
            while (await native.transaction(each)).state != PARKED:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.1)
    assert set(numbers.values()) == {most}
    assert (await native.transaction(transaction)).check_count == most
    # An answer to the last check that comes now is too late; a verdict is refused.
    assert await raw.end(transaction, Resolution.COMMIT, Source.SOURCE_SERVER_CHECK) == Code.OK
    assert await raw.end(transaction, Resolution.COMMIT) == Code.INVALID_TRANSACTION_ID
    assert (await native.transaction(transaction)).state == PARKED
    assert await bodies(raw, native, topic) == []


@pytest.mark.parametrize(
    ("recovery", "least"), [(None, 0.2), (0.001, 0.2), (0.0, 0.2), (1.2, 1.2)], ids=["none", "below", "zero", "above"]
)
async def test_the_first_check_waits_as_long_as_the_message_wants(
    raw: RawClient, native: Client, recovery: float | None, least: float
) -> None:
    topic = await native.make_topic()
    stream = await raw.as_producer(topic)
    transaction = await raw.prepare(topic, recovery=recovery)
    await stream.check_of(transaction)
    found = await native.transaction(transaction)
    waited = found.checks[0].sent_at.ToMicroseconds() - found.prepared_at.ToMicroseconds()
    assert waited >= least * 1e6
    assert await raw.end(transaction, Resolution.ROLLBACK) == Code.OK


async def test_an_hour_of_recovery_is_an_hour_without_checks(raw: RawClient, native: Client) -> None:
    topic = await native.make_topic()
    stream = await raw.as_producer(topic)
    later = await raw.prepare(topic, recovery=3600)
    for _ in range(2):
        sooner = await raw.prepare(topic)
        await stream.check_of(sooner)
        await stream.check_of(sooner)
        assert await raw.end(sooner, Resolution.ROLLBACK) == Code.OK
    found = await native.transaction(later)
    assert found.check_count == 0
    assert found.next_check_at.ToMicroseconds() - found.prepared_at.ToMicroseconds() == 3600_000_000
    assert await raw.end(later, Resolution.ROLLBACK) == Code.OK


async def test_a_stream_that_says_nothing_is_its_clients_all_the_same(raw: RawClient, native: Client) -> None:
    """Some clients come back without their settings after a stream broke."""
    topic = await native.make_topic()
    before = await raw.prepare(topic, "before")
    stream = raw.telemetry()
    assert (await stream.check_of(before)).message.body == b"before"
    after = await raw.prepare(other := await native.make_topic(), "after")
    question = await stream.check_of(after)
    assert (question.message.topic.name, question.message.body) == (other, b"after")
    for each in (before, after):
        assert await raw.end(each, Resolution.ROLLBACK) == Code.OK


async def test_who_publishes_to_a_topic_is_asked_although_another_client_sent(
    raw: RawClient, native: Client, connect_raw: Connect
) -> None:
    topic = await native.make_topic()
    transaction = await raw.prepare(topic, "of one that died")
    stream = await connect_raw().as_producer(topic)
    question = await stream.check_of(transaction)
    assert question.message.body == b"of one that died"
    assert await raw.end(transaction, Resolution.ROLLBACK) == Code.OK


async def test_who_sent_half_messages_is_asked_before_who_only_named_the_topic(
    native: Client, connect_raw: Connect
) -> None:
    topic = await native.make_topic()
    one, other = connect_raw(), connect_raw()
    named = await one.as_producer(topic)
    sends = await other.as_producer()
    ids = [await other.prepare(topic, str(number)) for number in range(6)]
    for _ in range(2):
        await asked(sends, ids)
    assert {check.client_id for check in await checks_of(native, *ids)} == {other.client_id}
    # When it is gone, those who only named the topic are better than nobody.
    await sends.hang_up()
    await asked(named, ids)
    for each in ids:
        assert await one.end(each, Resolution.ROLLBACK) == Code.OK


async def test_all_who_sent_half_messages_take_turns(native: Client, connect_raw: Connect) -> None:
    topic = await native.make_topic()
    clients = [connect_raw() for _ in range(3)]
    streams = [await client.as_producer(topic) for client in clients]
    ids = [await client.prepare(topic, recovery=1) for client in clients for _ in range(6)]
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*[stream.next_check() for stream in streams])
    for each in ids:
        assert await clients[0].end(each, Resolution.ROLLBACK) == Code.OK


async def test_a_client_that_ends_is_asked_no_more(native: Client, connect_raw: Connect) -> None:
    topic = await native.make_topic()
    one, other = connect_raw(), connect_raw()
    ending = await one.as_producer(topic)
    also_ending = one.telemetry()
    staying = await other.as_producer(topic)
    transaction = await one.prepare(topic)
    await asyncio.wait(
        [asyncio.create_task(stream.check_of(transaction)) for stream in (ending, also_ending)],
        return_when=asyncio.FIRST_COMPLETED,
    )
    assert await one.terminate() == Code.OK
    for stream in (ending, also_ending):
        assert (await stream.ended()).name == "OK"
    await staying.check_of(transaction)
    assert await one.terminate() == Code.OK
    assert await other.end(transaction, Resolution.ROLLBACK) == Code.OK


async def test_a_stream_that_breaks_is_asked_no_more(raw: RawClient, native: Client) -> None:
    topic = await native.make_topic()
    broken, held = await raw.as_producer(topic), await raw.as_producer(topic)
    await broken.hang_up()
    ids = [await raw.prepare(topic) for _ in range(4)]
    await asked(held, ids)
    assert {check.client_id for check in await checks_of(native, *ids)} == {raw.client_id}
    for each in ids:
        assert await raw.end(each, Resolution.ROLLBACK) == Code.OK


async def test_without_a_producer_no_check_is_spent(raw: RawClient, native: Client, connect_raw: Connect) -> None:
    topic, other = await native.make_topic(), await native.make_topic()
    lonely = await raw.prepare(topic)
    busy = connect_raw()
    stream = await busy.as_producer(other)
    transaction = await busy.prepare(other)
    for _ in range(3):
        await stream.check_of(transaction)
    found = await native.transaction(lonely)
    assert (found.check_count, len(found.checks)) == (0, 0)
    late = await raw.as_producer(topic)
    await late.check_of(lonely)
    assert (await checks_of(native, lonely))[0].client_id == raw.client_id
    for client, each in ((raw, lonely), (busy, transaction)):
        assert await client.end(each, Resolution.ROLLBACK) == Code.OK


async def test_a_consumers_stream_is_not_asked(raw: RawClient, native: Client, connect_raw: Connect) -> None:
    topic, group = await native.make_topic(), await native.make_group()
    consumer = await connect_raw().as_consumer(group, topic)
    producer = await raw.as_producer(topic)
    transaction = await raw.prepare(topic)
    await producer.check_of(transaction)
    assert await raw.end(transaction, Resolution.ROLLBACK) == Code.OK
    assert consumer.silent


@pytest.mark.parametrize("length", [119, 120, 121, 127])
async def test_topics_of_any_length_have_transactions(raw: RawClient, native: Client, length: int) -> None:
    """A producer group, which is what they belong to, has a shorter name than a topic may have."""
    stem = unique("long")
    topic = await named_topic(native, f"{stem}{'x' * (length - len(stem))}")
    # They differ at the end only.
    other = await named_topic(native, f"{topic[:-1]}y")
    stream = await raw.as_producer(topic)
    transaction = await raw.prepare(topic, "half")
    assert (await stream.check_of(transaction)).message.topic.name == topic
    assert await raw.end(transaction) == Code.OK
    foreign = await raw.prepare(other, recovery=3600)
    groups = {(await native.transaction(each)).producer_group for each in (transaction, foreign)}
    assert len(groups) == 2
    assert (topic in groups) == (length <= 120)
    assert await bodies(raw, native, topic) == [b"half"]


async def named_topic(native: Client, name: str) -> str:
    wanted = admin_pb2.Topic(name=name, queue_count=1)
    await native.call(native.admin.CreateTopic, admin_pb2.CreateTopicRequest(topic=wanted))
    return name


async def test_halves_of_both_protocols_are_asked_about_in_their_own(raw: RawClient, native: Client) -> None:
    topic = await native.make_topic()
    stream = await raw.as_producer(topic)
    (theirs,) = await native.prepare(topic, topic, ["native"])
    question = await stream.check_of(theirs)
    assert (question.message.body, question.message.system_properties.message_id) == (b"native", official(theirs))
    assert await raw.end(theirs) == Code.OK
    ours = await raw.prepare(topic, "ours")
    assert await raw.end(ours, Resolution.ROLLBACK) == Code.OK
    checks = await native.answering(topic)
    await stream.hang_up()
    again = await raw.prepare(topic, "again")
    check = await checks.until(again, ROLLBACK)
    assert [each.body for each in check.messages] == [b"again"]
    await checks.answer(check, COMMIT)
    assert await bodies(raw, native, topic) == [b"native", b"again"]


async def test_node_gets_its_questions_while_it_waits_for_settings(raw: RawClient, native: Client) -> None:
    topic = await native.make_topic()
    transaction = await raw.prepare(topic)
    stream = raw.telemetry()
    await stream.tell(raw.producer_settings(topic, language=Language.NODE_JS))
    assert (await stream.check_of(transaction)).transaction_id == transaction
    assert await raw.end(transaction, Resolution.ROLLBACK) == Code.OK
