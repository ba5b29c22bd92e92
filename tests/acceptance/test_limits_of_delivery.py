"""Every limit of delivery and reading at one below, at, and one above, over gRPC."""

from __future__ import annotations

from typing import Any

import grpc

from acceptance.client import (
    PATIENCE,
    Client,
    Refusal,
    message,
    new_id,
    refused_field,
    unique,
)
from halfmq.v1 import admin_pb2, consumer_pb2, transaction_pb2


async def test_reason_and_delay_of_a_nack(client: Client) -> None:
    topic, readers = await client.make_topic(), await client.make_group()
    await client.send(topic)

    def nack(delivery: consumer_pb2.Delivery, reason: str = "", seconds: float = 0) -> Any:
        request = consumer_pb2.NackRequest(receipt_handles=[delivery.receipt_handle], reason=reason)
        request.delay.FromMicroseconds(int(seconds * 1e6))
        return client.call(client.consumer.Nack, request)

    (delivery,) = await client.pull(readers, topic)
    for reason in ("r" * 499, "ü" * 500):
        (result,) = (await nack(delivery, reason)).results
        assert not result.HasField("error")
        (delivery,) = await client.pull(readers, topic, wait=20)
        assert delivery.last_error == reason
    await refused_field(nack(delivery, "r" * 501), "reason")
    for seconds in (12 * 3600 + 0.000001, 12 * 3600 + 1, -0.000001, -1):
        await refused_field(nack(delivery, seconds=seconds), "delay")
    # It was refused each time, so the receipt is still good; and once it is given back, nobody gets it for long.
    for seconds in (12 * 3600 - 1, 12 * 3600):
        (result,) = (await nack(delivery, seconds=seconds)).results
        assert not result.HasField("error")
        assert await client.pull(readers, topic) == []
        await client.send(topic)
        (delivery,) = await client.pull(readers, topic)


async def test_what_a_stream_is_told_of_limits(client: Client) -> None:
    """A consumer's stream outlives a refused nack or extension; they are answered handle by handle."""
    topic, readers = await client.make_topic(), await client.make_group()
    await client.send(topic)
    (delivery,) = await client.pull(readers, topic)
    stream = client.consumer.Consume(timeout=PATIENCE)
    subscribe = consumer_pb2.Subscribe(consumer_group=readers, topics=[topic])
    await stream.write(consumer_pb2.ConsumeRequest(subscribe=subscribe))
    await stream.read()

    async def outcome(**event: Any) -> list[consumer_pb2.ReceiptResult]:
        await stream.write(consumer_pb2.ConsumeRequest(request_id=7, **event))
        response = await stream.read()
        assert isinstance(response, consumer_pb2.ConsumeResponse)
        assert response.outcome.request_id == 7
        results = list(response.outcome.results)
        assert all(result.receipt_handle == delivery.receipt_handle for result in results)
        return results

    handles = [delivery.receipt_handle]
    late = consumer_pb2.NackRequest(receipt_handles=handles)
    late.delay.FromSeconds(12 * 3600 + 1)
    long = consumer_pb2.ExtendLeaseRequest(receipt_handles=handles)
    long.duration.FromSeconds(12 * 3600 + 1)
    wordy = consumer_pb2.NackRequest(receipt_handles=handles, reason="r" * 501)
    for event, field in (({"nack": late}, "delay"), ({"extend": long}, "duration"), ({"nack": wordy}, "reason")):
        assert [result.error.field for result in await outcome(**event)] == [field]
    assert await outcome(ack=consumer_pb2.AckRequest(receipt_handles=handles)) == []  # Nothing to say of it.
    stream.cancel()
    assert await stream.code() is grpc.StatusCode.CANCELLED


async def test_pages(client: Client) -> None:
    for size in (999, 1000):
        await client.call(client.admin.ListTopics, admin_pb2.ListTopicsRequest(page_size=size))
    for method, request in (
        (client.admin.ListTopics, admin_pb2.ListTopicsRequest(page_size=1001)),
        (client.admin.ListGroups, admin_pb2.ListGroupsRequest(page_size=1001)),
        (client.admin.ListTransactions, admin_pb2.ListTransactionsRequest(page_size=1001)),
    ):
        await refused_field(client.call(method, request), "page_size")
    topic, group = await client.make_topic(), unique("shop")
    ids = await client.prepare(group, topic, ["x"] * 7)
    found: list[str] = []
    token, sizes = "", []
    while True:
        request = admin_pb2.ListTransactionsRequest(producer_group=group, page_size=3, page_token=token)
        page = await client.call(client.admin.ListTransactions, request)
        sizes.append(len(page.transactions))
        found += [summary.transaction_id for summary in page.transactions]
        token = page.next_page_token
        if not token:
            break
    assert sizes == [3, 3, 1]
    assert sorted(found) == sorted(ids)


async def test_times_of_leases_and_waits(client: Client) -> None:
    topic, readers = await client.make_topic(), await client.make_group()

    def pull(**times: float) -> Any:
        request = consumer_pb2.PullRequest(consumer_group=readers, topics=[topic])
        for name, seconds in times.items():
            getattr(request, name).FromMicroseconds(int(seconds * 1e6))
        return client.stream(client.consumer.Pull, request)

    for seconds in (0.1, 12 * 3600 - 1, 12 * 3600):
        assert await pull(lease_duration=seconds) == []
    for seconds in (0.099999, 12 * 3600 + 1, -1):
        await refused_field(pull(lease_duration=seconds), "lease_duration")
    await refused_field(pull(wait=61), "wait")
    await client.send(topic)
    (piece,) = await pull(wait=60)
    assert len(piece.deliveries) == 1
    request = consumer_pb2.PullRequest(consumer_group=readers, topics=[topic], max_messages=100_000)
    assert await client.stream(client.consumer.Pull, request) == []
    request.max_messages = 100_001
    await refused_field(client.stream(client.consumer.Pull, request), "messages")


async def test_duration_of_a_lease(client: Client) -> None:
    topic, readers = await client.make_topic(), await client.make_group()
    await client.send(topic)
    (delivery,) = await client.pull(readers, topic)

    def extend(seconds: float) -> Any:
        request = consumer_pb2.ExtendLeaseRequest(receipt_handles=[delivery.receipt_handle])
        request.duration.FromMicroseconds(int(seconds * 1e6))
        return client.call(client.consumer.ExtendLease, request)

    for seconds in (0.099999, 0, -1, 12 * 3600 + 0.000001, 12 * 3600 + 1):
        await refused_field(extend(seconds), "duration")
    before = delivery.lease_expires_at.ToMicroseconds()
    for seconds in (12 * 3600 - 1, 12 * 3600):
        (result,) = (await extend(seconds)).results
        assert not result.HasField("error")
        assert result.lease_expires_at.ToMicroseconds() > before + (seconds - 60) * 1e6
    # The shortest ends the lease as good as now, so it comes last.
    (result,) = (await extend(0.1)).results
    assert result.lease_expires_at.ToMicroseconds() < before + 3600 * 1e6
    (again,) = await client.pull(readers, topic, wait=20)
    assert (again.message.offset, again.attempt) == (delivery.message.offset, 2)


async def test_lease_duration_of_a_subscription(client: Client) -> None:
    topic, readers = await client.make_topic(), await client.make_group()

    async def subscribe(microseconds: int) -> int:
        wanted = consumer_pb2.Subscribe(consumer_group=readers, topics=[topic])
        wanted.lease_duration.FromMicroseconds(microseconds)
        stream = client.consumer.Consume(timeout=PATIENCE)
        await stream.write(consumer_pb2.ConsumeRequest(subscribe=wanted))
        try:
            response = await stream.read()
        except grpc.aio.AioRpcError as error:
            raise Refusal(error) from None
        assert isinstance(response, consumer_pb2.ConsumeResponse)
        stream.cancel()
        assert await stream.code() is grpc.StatusCode.CANCELLED
        return response.subscribed.lease_duration.ToMicroseconds()

    longest = 12 * 3600 * 10**6
    for microseconds in (100_000, 100_001, longest - 1, longest):
        assert await subscribe(microseconds) == microseconds
    for microseconds in (-1, 0, 99_999, longest + 1):
        await refused_field(subscribe(microseconds), "lease_duration")


async def test_messages_and_wait_of_a_read(client: Client) -> None:
    topic = await client.make_topic()
    for number in range(40):
        await client.send(topic, f"{number}")

    def read(most: int = 0, wait: float | None = None, offset: int = 0) -> Any:
        request = consumer_pb2.ReadQueueRequest(topic=topic, max_messages=most, offset=offset)
        if wait is not None:
            request.wait.FromMicroseconds(int(wait * 1e6))
        return client.stream(client.consumer.ReadQueue, request)

    for most, count in ((0, 32), (1, 1), (39, 39), (40, 40), (41, 40), (99_999, 40), (100_000, 40)):
        pieces = await read(most)
        assert [m.body.decode() for piece in pieces for m in piece.messages] == [f"{n}" for n in range(count)]
        assert (pieces[-1].next_offset, pieces[-1].max_offset) == (count, 40)
    await refused_field(read(100_001), "messages")
    # With messages there nothing is waited for.
    for wait in (0, 59.999999, 60):
        (piece,) = await read(most=1, wait=wait, offset=39)
        assert piece.next_offset == 40
    for wait in (-0.000001, 60.000001, 61):
        await refused_field(read(wait=wait, offset=40), "wait")


async def test_queue_numbers_and_offsets(client: Client) -> None:
    topic = await client.make_topic(queues=3)
    for queue in range(3):
        assert await client.log(topic, queue) == []
    await refused_field(client.log(topic, 3), "queue")
    request = consumer_pb2.ReadQueueRequest(topic=topic, offset=-1)
    await refused_field(client.stream(client.consumer.ReadQueue, request), "offset")
    request = consumer_pb2.ReadQueueRequest(topic=topic, offset=2**63 - 1)
    (piece,) = await client.stream(client.consumer.ReadQueue, request)
    assert (list(piece.messages), piece.max_offset) == ([], 0)
    big = transaction_pb2.HalfTransaction(transaction_id=new_id(), messages=[message(topic)], first_position=2**32 - 1)
    (refused,) = await client.prepare_items(unique("shop"), [big])
    assert refused.error.field == "messages"
