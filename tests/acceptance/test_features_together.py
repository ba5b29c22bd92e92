"""Features at once: transactions of delayed, grouped, filtered messages with keys, on two brokers of one database."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from acceptance.client import COMMIT, COMMITTED, PREPARED, ROLLED_BACK, Client, Pair, half, message, new_id, unique
from acceptance.streams import EARLIEST, Listener, eventually, make_group, progress
from halfmq.v1 import admin_pb2, consumer_pb2, message_pb2, producer_pb2, query_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from acceptance.streams import Arrival
    from support.brokers import BrokerProcess
    from support.databases import AnyKind
    from support.shared_brokers import Brokers


AHEAD = 2.5
INVALID = grpc.StatusCode.INVALID_ARGUMENT.value[0]
PAID = message_pb2.Filter(tags="paid || refunded")
DEAR = message_pb2.Filter(sql="amount > 10 AND halfmq.tag = 'paid'")


@pytest.fixture
def two(server_kind: AnyKind, brokers: Brokers, connect: Callable[[BrokerProcess], Client]) -> Pair:
    """Clients of two brokers on one database."""
    return connect(brokers.shared(server_kind)), connect(brokers.second(server_kind))


def micros(seconds: float) -> int:
    return int(seconds * 1e6)


def order(topic: str, body: str, due: float, tag: str = "paid", **rest: Any) -> message_pb2.Message:
    """A message for a time; its message group is the letter that it begins with, its key its body."""
    keys, properties = ["all", body], {"amount": "11", "note": f"about {body}"}
    wanted = message(topic, body, tag=tag, message_group=body[0], keys=keys, properties=properties, **rest)
    wanted.deliver_at.FromMicroseconds(micros(due))
    return wanted


def payment(topic: str, body: str, delay: float, amount: int, tag: str = "paid") -> message_pb2.Message:
    """As an order, but so long after Prepare."""
    wanted = order(topic, body, 0, tag)
    wanted.properties["amount"] = str(amount)
    wanted.delay.FromMicroseconds(micros(delay))
    return wanted


async def prepare(client: Client, *messages: message_pb2.Message) -> str:
    """One transaction, which is not checked; its id."""
    (result,) = await client.prepare_items(unique("shop"), [half(messages, check_after=600)])
    assert (result.state, result.HasField("error")) == (PREPARED, False), result
    return str(result.transaction_id)


async def send(client: Client, wanted: message_pb2.Message) -> producer_pb2.SendResult:
    request = producer_pb2.SendRequest(messages=[wanted])
    result: producer_pb2.SendResult = (await client.call(client.producer.Send, request)).results[0]
    return result


async def get(client: Client, message_id: str) -> query_pb2.GetMessageResponse:
    request = query_pb2.GetMessageRequest(message_id=message_id)
    found: query_pb2.GetMessageResponse = await client.call(client.query.GetMessage, request)
    return found


async def by_key(client: Client, topic: str, key: str) -> list[str]:
    """The bodies that FindMessages gives."""
    request = query_pb2.FindMessagesRequest(topic=topic, key=key)
    return [found.body.decode() for found in (await client.call(client.query.FindMessages, request)).messages]


async def all_handled(client: Client, group: str) -> None:
    await eventually(lambda: progress(client, group), lambda found: found and not any(each.lag for each in found))


def in_order(streams: Sequence[Listener], topic: str) -> list[Arrival]:
    """What consumers got of a topic, in the order in which it came to them."""
    came = sorted((each for stream in streams for each in stream.arrivals), key=lambda each: each.at)
    return [each for each in came if each.delivery.message.topic == topic]


def by_group(arrivals: Sequence[Arrival]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for each in arrivals:
        found.setdefault(each.delivery.message.message_group, []).append(each.body)
    return found


async def test_all_features_in_one_transaction(two: Pair) -> None:
    orders, payments = await two[0].make_topic("orders", 2), await two[1].make_topic("payments", 2)
    group = await two[0].make_group()
    filters = [consumer_pb2.TopicFilter(topic=t, filter=f) for t, f in ((orders, PAID), (payments, DEAR))]
    due = time.time() + AHEAD
    halves = [
        # The first of the transaction is the last of its message group: places go by the time.
        order(orders, "a9", due + 0.2),
        order(orders, "a1", due),
        order(orders, "a2", due, tag="draft"),
        order(orders, "b1", due, tag="refunded"),
        order(orders, "a3", due, tag="refunded"),
        order(orders, "b2", due),
        payment(payments, "p1", AHEAD, 10),
        payment(payments, "p2", AHEAD, 20),
        payment(payments, "p3", AHEAD, 30, tag="draft"),
        payment(payments, "p4", AHEAD, 40),
    ]
    async with (
        Listener(two[0], group, orders, payments, filters=filters, acking=True) as one,
        Listener(two[1], group, orders, payments, filters=filters, acking=True) as other,
    ):
        streams = (one, other)
        transaction_id = await prepare(two[0], *halves)
        ids = [transaction_id, *[f"{transaction_id}.{number}" for number in range(1, len(halves))]]

        # Before the verdict: only what was sent meanwhile is there.
        await two[1].send(orders, "marker 1", tag="paid")
        await eventually(lambda: progress(two[0], group), lambda found: sum(each.max_offset for each in found) == 1)
        await all_handled(two[0], group)
        assert [each.body for each in in_order(streams, orders)] == ["marker 1"]
        for number in (1, 7):
            found = await get(two[1], ids[number])
            assert (found.state, found.HasField("message"), found.HasField("scheduled_at")) == (PREPARED, False, False)
            assert found.waiting.body == halves[number].body
        assert await by_key(two[1], orders, "all") == []

        # Committed through the other broker, before the time: still nothing.
        (result,) = await two[1].commit([transaction_id])
        assert result.state == COMMITTED
        assert [place.HasField("scheduled_at") for place in result.released] == [True] * len(halves)
        assert [place.scheduled_at.ToMicroseconds() for place in result.released[:2]] == [
            micros(due + 0.2),
            micros(due),
        ]
        found = await get(two[0], ids[7])
        assert (found.state, found.scheduled_at) == (COMMITTED, result.released[7].scheduled_at)
        assert await by_key(two[0], payments, "all") == []
        await two[0].send(orders, "marker 2", tag="paid")

        # Then: what the filters let pass, in order within each message group.
        await eventually(lambda: progress(two[0], group), lambda found: sum(each.max_offset for each in found) == 12)
        await all_handled(two[1], group)
        came = {topic: by_group(in_order(streams, topic)) for topic in (orders, payments)}
        assert came[orders].pop("") == ["marker 1", "marker 2"]
        assert came == {orders: {"a": ["a1", "a3", "a9"], "b": ["b1", "b2"]}, payments: {"p": ["p2", "p4"]}}

    times = {own_id: place.scheduled_at for own_id, place in zip(ids, result.released, strict=True)}
    for got in [each.delivery for topic in (orders, payments) for each in in_order(streams, topic)]:
        if not got.message.message_group:
            continue
        wanted = halves[ids.index(got.message.message_id)]
        assert (got.message.transaction_id, got.attempt) == (transaction_id, 1)
        assert (got.message.tag, got.message.keys, got.message.properties) == (
            wanted.tag,
            wanted.keys,
            wanted.properties,
        )
        assert got.message.deliver_at == times[got.message.message_id]
        assert got.message.stored_at.ToMicroseconds() >= got.message.deliver_at.ToMicroseconds()

    # Found on both brokers, also what the group did not want; each message group lies in one queue, in its order.
    for client in two:
        assert sorted(await by_key(client, orders, "all")) == ["a1", "a2", "a3", "a9", "b1", "b2"]
        assert await by_key(client, payments, "all") == ["p1", "p2", "p3", "p4"]
        assert await by_key(client, orders, "a2") == ["a2"]
        places = []
        for own_id, wanted in zip(ids, halves, strict=True):
            found = await get(client, own_id)
            assert (found.state, found.message.body, found.message.topic) == (COMMITTED, wanted.body, wanted.topic)
            assert not found.HasField("waiting")
            places.append((wanted.message_group, found.message.queue, found.message.offset, found.message.body))
        lying = {name: sorted(place[1:] for place in places if place[0] == name) for name in "abp"}
        assert {name: len({queue for queue, *_ in lying[name]}) for name in lying} == {"a": 1, "b": 1, "p": 1}
        assert [body for *_, body in lying["a"]] == [b"a1", b"a2", b"a3", b"a9"]


async def passed(client: Client, due: float) -> None:
    """Waits until a time has come for the database: until a message for it was delivered."""
    topic, group = await client.make_topic("clock"), await client.make_group()
    await send(client, order(topic, "now", due))
    assert [each.message.body for each in await client.pull(group, topic, wait=20)] == [b"now"]


async def test_a_commit_after_the_time_delivers_at_once(two: Pair) -> None:
    orders, payments = await two[0].make_topic("orders", 2), await two[0].make_topic("payments", 2)
    group = await two[0].make_group()
    for topic, wanted in ((orders, PAID), (payments, DEAR)):
        request = admin_pb2.SetFilterRequest(group=group, filter=consumer_pb2.TopicFilter(topic=topic, filter=wanted))
        await two[0].call(two[0].admin.SetFilter, request)
    due = time.time() + 0.5
    halves = [
        order(orders, "a1", due),
        order(orders, "a2", due, tag="draft"),
        order(orders, "a3", due),
        payment(payments, "p1", 0.3, 11),
        payment(payments, "p2", 0.3, 9),
    ]
    transaction_id = await prepare(two[0], *halves)
    # A moment more than the longer of the two: the clocks of two brokers are not the same to the millisecond.
    await passed(two[1], time.time() + 0.8)
    assert [await two[1].consume_all(group, topic) for topic in (orders, payments)] == [[], []]
    (result,) = await two[1].commit([transaction_id])
    assert result.state == COMMITTED
    assert not any(place.HasField("scheduled_at") for place in result.released)
    assert [(place.topic, place.offset) for place in result.released] == [
        *[(orders, offset) for offset in range(3)],
        *[(payments, offset) for offset in range(2)],
    ]
    # No wait: it is there as soon as the commit was answered, on both brokers.
    assert await two[0].consume_all(group, orders) == ["a1", "a3"]
    assert await two[1].consume_all(group, payments) == ["p1"]
    assert await by_key(two[0], payments, "all") == ["p1", "p2"]


@pytest.mark.parametrize("late", [False, True], ids=["before the time", "after it"])
async def test_what_was_rolled_back_is_never_delivered(two: Pair, late: bool) -> None:
    orders, payments = await two[0].make_topic("orders", 2), await two[0].make_topic("payments", 2)
    group = await two[0].make_group()
    due = time.time() + 0.5
    halves = [order(orders, "a1", due), order(orders, "a2", due), payment(payments, "p1", 0.5, 20)]
    async with (
        Listener(two[0], group, orders, payments, acking=True) as one,
        Listener(two[1], group, orders, payments, acking=True) as other,
    ):
        transaction_id = await prepare(two[0], *halves)
        if late:
            await passed(two[0], due)
        (result,) = await two[1].roll_back([transaction_id], "the card was refused")
        assert (result.state, result.HasField("error"), list(result.released)) == (ROLLED_BACK, False, [])
        # Of the same message groups, and later: whatever was to come has come before them.
        for client, wanted in ((two[0], order(orders, "a9", due + 0.5)), (two[1], order(payments, "p9", due + 0.5))):
            assert not (await send(client, wanted)).HasField("error")
        await eventually(lambda: progress(two[0], group), lambda found: sum(each.max_offset for each in found) >= 2)
        await all_handled(two[0], group)
        assert sorted(one.bodies + other.bodies) == ["a9", "p9"]
    (refused,) = await two[0].commit([transaction_id])
    assert (refused.state, refused.error.reason) == (ROLLED_BACK, "VERDICT_CONFLICT")
    for client in two:
        assert (await by_key(client, orders, "all"), await by_key(client, payments, "all")) == (["a9"], ["p9"])
        assert await get(client, transaction_id) == query_pb2.GetMessageResponse(state=ROLLED_BACK)


async def test_each_broker_has_its_own_longest_delay(
    server_kind: AnyKind,
    two: Pair,
    new_broker: Callable[..., BrokerProcess],
    brokers: Brokers,
    connect: Callable[[BrokerProcess], Client],
) -> None:
    strict = connect(new_broker(brokers.shared(server_kind).database, max_delay_hours=0.5))
    topic = await strict.make_topic()
    now = time.time()
    for field, short, long in (
        ("delay", payment(topic, "p1", 1700, 20), payment(topic, "p2", 1900, 20)),
        ("deliver_at", order(topic, "a1", now + 1700), order(topic, "a2", now + 1900)),
    ):
        refused = await send(strict, long)
        assert (refused.error.code, refused.error.reason) == (INVALID, "DELAY_TOO_LONG")
        assert (refused.error.field, refused.HasField("position")) == (f"messages[0].{field}", False)
        assert "0.5 h" in refused.error.message
        (prepared,) = await strict.prepare_items(unique("shop"), [half([short, long], check_after=600)])
        assert (prepared.error.code, prepared.error.reason) == (INVALID, "DELAY_TOO_LONG")
        assert prepared.error.field == f"messages[1].{field}"
        # What is shorter it takes, and another broker on the same database takes both.
        for client, wanted in ((strict, [short]), (two[0], [short, long])):
            for each in wanted:
                assert (await send(client, each)).position.HasField("scheduled_at")
            transaction_id = await prepare(client, *wanted)
            # It commits also what it would not have prepared.
            (result,) = await strict.commit([transaction_id])
            assert result.state == COMMITTED
            assert [place.HasField("scheduled_at") for place in result.released] == [True] * len(wanted)


async def test_everyone_of_a_broadcasting_group_gets_what_is_committed(two: Pair) -> None:
    mode = admin_pb2.GROUP_MODE_BROADCASTING
    group = await make_group(two[0], unique("all"), mode=mode, start=EARLIEST)
    topic, shop = await two[0].make_topic(), unique("shop")
    checks = await two[1].answering(shop)

    def three(name: str) -> list[message_pb2.Message]:
        return [message(topic, f"{name}{number}", message_group=name) for number in range(3)]

    expected = {"": ["plain"], "a": ["a0", "a1", "a2"], "b": ["b0", "b1", "b2"], "d": ["d0", "d1", "d2"]}
    async with (
        Listener(two[0], group, topic, client_id="ann", acking=True) as ann,
        Listener(two[1], group, topic, client_id="bob", acking=True) as bob,
    ):
        first, second, never = [await prepare(two[n % 2], *three(name)) for n, name in enumerate("abc")]
        assert [result.state for result in await two[1].commit([first])] == [COMMITTED]
        assert [result.state for result in await two[0].commit([second])] == [COMMITTED]
        assert [result.state for result in await two[0].roll_back([never])] == [ROLLED_BACK]
        # And one that is decided by the answer to a check.
        (asked,) = await two[0].prepare_items(shop, [half(three("d"), check_after=0.1)])
        await checks.answer_all([asked.transaction_id], COMMIT)
        await two[1].send(topic, "plain")
        for stream in (ann, bob):
            await stream.until(lambda stream=stream: len(stream.arrivals) >= 10)  # type: ignore[misc]
        standing = await eventually(
            lambda: progress(two[1], group), lambda found: len(found) == 2 and not any(each.lag for each in found)
        )
        assert sorted((each.client_id, each.committed_offset) for each in standing) == [("ann", 10), ("bob", 10)]
        for stream in (ann, bob):
            assert by_group(stream.arrivals) == expected
            assert {each.delivery.attempt for each in stream.arrivals} == {1}
    # Each goes on where it was, on the broker of the other one; one transaction came meanwhile.
    last = await prepare(two[1], *three("e"))
    await two[0].commit([last])
    async with (
        Listener(two[1], group, topic, client_id="ann", acking=True) as ann,
        Listener(two[0], group, topic, client_id="bob", acking=True) as bob,
    ):
        for stream in (ann, bob):
            await stream.until(lambda stream=stream: len(stream.arrivals) >= 3)  # type: ignore[misc]
        await all_handled(two[0], group)
        assert ann.bodies == bob.bodies == ["e0", "e1", "e2"]


async def test_a_long_tag_is_a_tag_wherever_a_message_goes(two: Pair) -> None:
    """It is stored elsewhere than a short one, which nobody sees."""
    one, other = two
    topic, group = await one.make_topic(), await make_group(one, unique("tired"), max_attempts=1, start=EARLIEST)
    tag = "ü" * 4000
    wanted = message_pb2.Filter(tags=f"{tag} || short")

    def tagged(body: str, of: str = tag, **rest: Any) -> message_pb2.Message:
        return message(topic, body, tag=of, properties={"note": body}, **rest)

    committed = await prepare(one, tagged("committed"), tagged("beside", "short"))
    await other.commit([committed])
    sent, later, unwanted = (
        tagged(body, of, message_id=new_id()) for body, of in (("sent", tag), ("later", tag), ("unwanted", "t"))
    )
    later.delay.FromMicroseconds(1_000_000)
    request = producer_pb2.SendRequest(messages=[sent, later, unwanted])
    for client in (one, other):
        # The same again under its id is the same message, whichever broker hears it.
        (first, *_) = (await client.call(client.producer.Send, request)).results
        assert not first.HasField("error"), first
    seen = {"committed": tag, "beside": "short", "sent": tag, "later": tag}
    deliveries: list[consumer_pb2.Delivery] = []
    while len({each.message.body for each in deliveries}) < len(seen):
        pulled = consumer_pb2.PullRequest(
            consumer_group=group,
            topics=[topic],
            max_messages=100,
            filters=[consumer_pb2.TopicFilter(topic=topic, filter=wanted)],
        )
        pulled.wait.FromSeconds(10)
        deliveries += [each for piece in await other.stream(other.consumer.Pull, pulled) for each in piece.deliveries]
    assert {each.message.body.decode(): each.message.tag for each in deliveries} == seen
    assert {each.message.body.decode(): dict(each.message.properties) for each in deliveries} == {
        body: {"note": body} for body in seen
    }
    # By columns, and as a dead letter.
    read = consumer_pb2.ReadQueueRequest(topic=topic, max_messages=100, columns=True, filter=wanted)
    (piece, *_) = await one.stream(one.consumer.ReadQueue, read)
    assert set(piece.columns.tags) == {tag, "short"}
    assert set(piece.columns.property_names) == {"note"}
    refused = consumer_pb2.NackRequest(receipt_handles=[each.receipt_handle for each in deliveries], reason="no")
    await other.call(other.consumer.Nack, refused)
    dead = await one.log(f"%DLQ%{group}")
    assert {each.body.decode(): each.tag for each in dead} == seen
    assert all("halfmq.tag" not in each.properties for each in dead)
