"""A call that its client gave up while the database was busy is not begun any more: it leaves no effect."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from acceptance.client import COMMITTED, PATIENCE, PREPARED, Client, Pair, message, new_id, unique
from acceptance.streams import handles
from halfmq.v1 import consumer_pb2, producer_pb2, transaction_pb2
from support.databases import connect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.databases import AnyKind
    from support.shared_brokers import Brokers

DEADLINE = 0.3
LONGER = 1.0
ABANDONED = 20
# What a client waits beyond its deadline, on a machine that does much else.
LATE = 30.0


class Busy:
    """The database of the shared broker, and how to have it wait."""

    def __init__(self, url: str) -> None:
        self._url = url

    @contextmanager
    def locked(self, table: str) -> Iterator[None]:
        """Every row of a table is locked; on embedded storage, the whole file."""
        if self._url.startswith("sqlite"):
            with closing(sqlite3.connect(self._url.removeprefix("sqlite:///"), isolation_level=None)) as connection:
                connection.execute("BEGIN IMMEDIATE")
                yield
                connection.execute("ROLLBACK")
            return
        with connect(self._url) as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT * FROM {table} FOR UPDATE")
            yield
            connection.rollback()


@pytest.fixture
def busy(brokers: Brokers, kind: AnyKind) -> Busy:
    return Busy(brokers.shared(kind).database)


async def in_the_lane(client: Client, call: Any, topic: str) -> asyncio.Task[Any]:
    """Starts a call; when what came after it on the same connection is answered, it keeps its lane busy."""
    started = asyncio.ensure_future(call)
    for _ in range(3):
        await client.call(client.consumer.QueueOffsets, consumer_pb2.QueueOffsetsRequest(topic=topic))
    assert not started.done()
    return started


async def give_up(call: Callable[[int, float], Any]) -> None:
    """Makes calls with a short deadline; each must end in time, and say so.

    One more, the last number, has a longer one. When that has passed, the broker knows of the others, too: it hears of
    the end of a call a little later than the client. What becomes of this one is open.
    """

    async def one(number: int, deadline: float) -> None:
        began = time.monotonic()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(number, deadline)
        assert refused.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert deadline * 0.9 <= time.monotonic() - began < deadline + LATE

    await asyncio.gather(*[one(number, DEADLINE) for number in range(ABANDONED)], one(ABANDONED, LONGER))


async def test_sends_that_were_given_up_are_not_in_the_log(pair: Pair, busy: Busy) -> None:
    client, other = pair
    topic = await client.make_topic()
    await client.send(topic, "before")

    def send(body: str, timeout: float) -> Any:
        return client.producer.Send(producer_pb2.SendRequest(messages=[message(topic, body)]), timeout=timeout)

    with busy.locked("queue"):
        first = await in_the_lane(client, send("first", PATIENCE), topic)
        await give_up(lambda number, deadline: send(f"abandoned {number}", deadline))
        assert not first.done()
    assert not (await first).results[0].HasField("error")
    await client.send(topic, "last")
    found = [body for body in await other.bodies(topic) if body != f"abandoned {ABANDONED}"]
    assert found == ["before", "first", "last"]


async def test_verdicts_that_were_given_up_are_not_taken(pair: Pair, busy: Busy) -> None:
    client, other = pair
    topic, shop = await client.make_topic(), unique("shop")
    ids = await client.prepare(shop, topic, [str(number) for number in range(ABANDONED + 3)], check_after=600)

    def commit(transaction_id: str, timeout: float) -> Any:
        request = transaction_pb2.CommitRequest(transaction_ids=[transaction_id])
        return client.transactions.Commit(request, timeout=timeout)

    with busy.locked("queue"):
        first = await in_the_lane(client, commit(ids[-1], PATIENCE), topic)
        await give_up(lambda number, deadline: commit(ids[number], deadline))
        assert not first.done()
    assert [result.state for result in (await first).results] == [COMMITTED]
    (last,) = await client.commit([ids[-2]])
    assert last.state == COMMITTED
    states = [(await other.transaction(each)).state for each in ids[:ABANDONED]]
    assert states == [PREPARED] * ABANDONED
    found = [body for body in await other.bodies(topic) if body != str(ABANDONED)]
    assert found == [str(ABANDONED + 2), str(ABANDONED + 1)]
    # Said again, they are taken: nothing stands in their way.
    assert {result.state for result in await other.commit(ids[:-2])} == {COMMITTED}
    assert len(await client.bodies(topic)) == ABANDONED + 3


async def test_half_messages_that_were_given_up_are_not_there(pair: Pair, busy: Busy) -> None:
    client, other = pair
    topic, shop = await client.make_topic(), unique("shop")
    await client.prepare(shop, topic, ["before"], check_after=600)

    def prepare(body: str, timeout: float, group: str = shop) -> Any:
        half = transaction_pb2.HalfTransaction(transaction_id=new_id(), messages=[message(topic, body)])
        half.first_check_delay.FromSeconds(600)
        request = transaction_pb2.PrepareRequest(producer_group=group, transactions=[half])
        return client.transactions.Prepare(request, timeout=timeout)

    with busy.locked("half_message"):
        first = await in_the_lane(client, prepare("first", PATIENCE), topic)
        await give_up(
            lambda number, deadline: prepare("abandoned", deadline, shop if number < ABANDONED else unique("others"))
        )
        assert not first.done()
    assert not (await first).results[0].HasField("error")
    await client.prepare(shop, topic, ["last"], check_after=600)
    assert len(await other.undecided(shop)) == 3


async def test_acks_that_were_given_up_do_not_count(pair: Pair, busy: Busy) -> None:
    client, other = pair
    topic, group = await client.make_topic(), await client.make_group()
    for number in range(ABANDONED + 2):
        await client.send(topic, str(number))
    held = handles(await client.pull(group, topic))

    def ack(handle: str, timeout: float) -> Any:
        return client.consumer.Ack(consumer_pb2.AckRequest(receipt_handles=[handle]), timeout=timeout)

    with busy.locked("lease"):
        first = await in_the_lane(client, ack(held[-1], PATIENCE), topic)
        await give_up(lambda number, deadline: ack(held[number], deadline))
        assert not first.done()
    assert not (await first).results[0].HasField("error")

    async def lag() -> int:
        request = consumer_pb2.QueueOffsetsRequest(topic=topic, consumer_group=group)
        return sum(queue.lag for queue in (await other.call(other.consumer.QueueOffsets, request)).queues)

    # Another ack has gone through the lane behind them.
    results = (await client.call(client.consumer.Ack, consumer_pb2.AckRequest(receipt_handles=held[:1]))).results
    assert not results[0].HasField("error")
    assert await lag() in {ABANDONED - 1, ABANDONED}
