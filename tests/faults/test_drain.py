"""SIGTERM under load: what was acknowledged is kept, clients are sent elsewhere, and the broker ends by itself."""

from __future__ import annotations

import asyncio
import queue
import time
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from faults.client import PATIENCE, UNAVAILABLE, Client, code_of, message, new_id, unique
from faults.history import judge
from faults.load import Load
from faults.sites import rounds
from halfmq.v1 import consumer_pb2, consumer_pb2_grpc, transaction_pb2, transaction_pb2_grpc
from support.brokers import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.databases import Kind

LONGEST = 15.0
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING

pytestmark = pytest.mark.timeout(600 + 60 * rounds(1))


@pytest.mark.parametrize("settings", [{"drain": 10}, {"drain": 0}], ids=["drain", "no drain"])
def test_nothing_acknowledged_is_lost(
    kind: Kind, fresh_database: Callable[[Kind], str], settings: dict[str, object]
) -> None:
    database = fresh_database(kind)
    for _ in range(rounds(1)):
        with BrokerProcess(database, **settings) as broker:
            with Load([broker.endpoint], tasks=8) as load:
                load.history.await_commits(100)
                assert_ends(broker)
                assert_refuses(broker)
            load.stop_consuming()
            assert load.codes <= {UNAVAILABLE, grpc.StatusCode.CANCELLED}
            assert not load.errors, load.errors
            assert broker.count("[error") == 0, broker.log
        with BrokerProcess(database) as successor, Client(successor.endpoint) as client:
            assert judge(load.history, load.finish(client)) == []


def test_streams_end_and_their_owners_are_sent_elsewhere(kind: Kind, fresh_database: Callable[[Kind], str]) -> None:
    with BrokerProcess(fresh_database(kind), drain=10) as broker, Client(broker.endpoint) as client:
        topic, group, producers = client.make_topic(), client.make_group(), unique("producers")
        requests: queue.SimpleQueue[consumer_pb2.ConsumeRequest | None] = queue.SimpleQueue()
        subscribe = consumer_pb2.Subscribe(consumer_group=group, topics=[topic])
        requests.put(consumer_pb2.ConsumeRequest(subscribe=subscribe))
        requests.put(consumer_pb2.ConsumeRequest(credits=consumer_pb2.GrantCredits(messages=10)))
        stream = client.consume(iter(requests.get, None))
        assert next(stream).HasField("subscribed")
        client.send(message(topic, "one"))
        (delivery,) = next(stream).deliveries.deliveries
        with client.checks(producers) as asked:
            assert_ends(broker)
            assert list(stream) == []
            with pytest.raises(StopIteration):
                asked.next(new_id())
        requests.put(None)
        assert delivery.message.body == b"one"
        assert broker.count("[error") == 0, broker.log


async def test_who_watches_the_health_is_told_first(kind: Kind, fresh_database: Callable[[Kind], str]) -> None:
    with BrokerProcess(fresh_database(kind), drain=10) as broker, Client(broker.endpoint) as client:
        topic, group = client.make_topic(), client.make_group()
        # One connection and one task that reads each: what is noted comes in the order in which it was sent.
        async with grpc.aio.insecure_channel(broker.endpoint) as channel:
            health = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=PATIENCE)
            assert (await health.read()).status == SERVING
            consuming = consumer_pb2_grpc.ConsumerServiceStub(channel).Consume(timeout=PATIENCE)
            subscribe = consumer_pb2.Subscribe(consumer_group=group, topics=[topic])
            await consuming.write(consumer_pb2.ConsumeRequest(subscribe=subscribe))
            checking = transaction_pb2_grpc.TransactionServiceStub(channel).CheckTransactions(timeout=PATIENCE)
            register = transaction_pb2.RegisterProducer(producer_group=unique("producers"))
            await checking.write(transaction_pb2.CheckTransactionsRequest(register=register))
            assert grpc.aio.EOF not in [await consuming.read(), await checking.read()]
            seen: list[str] = []

            async def note(what: str, stream: grpc.aio.StreamStreamCall[Any, Any]) -> None:
                assert await stream.read() is grpc.aio.EOF
                seen.append(what)
                assert await stream.code() is grpc.StatusCode.OK

            async def note_health() -> None:
                assert (await health.read()).status == NOT_SERVING
                seen.append("health")
                assert await health.read() is grpc.aio.EOF

            notes = [note_health(), note("consumer", consuming), note("producer", checking)]
            await asyncio.gather(*notes, asyncio.to_thread(assert_ends, broker))
        assert seen[0] == "health", seen
        assert sorted(seen[1:]) == ["consumer", "producer"]


def test_a_pull_that_waits_does_not_hold_up_the_end(kind: Kind, fresh_database: Callable[[Kind], str]) -> None:
    with BrokerProcess(fresh_database(kind), drain=60) as broker, Client(broker.endpoint) as client:
        topic, group = client.make_topic(), client.make_group()
        request = consumer_pb2.PullRequest(consumer_group=group, topics=[topic])
        request.wait.FromSeconds(60)
        waiting = client.start_pull(request)
        # Its claim is made before anything that comes later on this connection is answered.
        client.send(message(client.make_topic(), "elsewhere"))
        assert_ends(broker)
        assert list(waiting) == []


def assert_ends(broker: BrokerProcess, within: float = LONGEST) -> None:
    begun = time.monotonic()
    assert broker.stop() == 0, broker.log
    assert time.monotonic() - begun < within


def assert_refuses(broker: BrokerProcess) -> None:
    with Client(broker.endpoint) as client:
        calls: list[Callable[[], object]] = [
            lambda: client.prepare("late", new_id(), [message("orders", "late")]),
            lambda: client.commit(new_id()),
            lambda: client.roll_back(new_id()),
            lambda: client.send(message("orders", "late")),
            lambda: client.pull("late", "orders"),
            lambda: client.ack(["late"]),
        ]
        for call in calls:
            with pytest.raises(grpc.RpcError) as refused:
                call()
            assert code_of(refused.value) is UNAVAILABLE
