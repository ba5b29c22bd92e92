"""One address for topics in several databases: each call goes to the cell of what it names."""

from __future__ import annotations

import queue
import time
import uuid
from contextlib import closing
from typing import TYPE_CHECKING

import grpc
import pytest

from cells.client import bodies, count, reason
from faults.client import COMMITTED, PATIENCE, PREPARED, ROLLED_BACK, ItemRefused, message, new_id, unique
from halfmq.v1 import admin_pb2, consumer_pb2, message_pb2, producer_pb2, sink_pb2, transaction_pb2
from support.databases import connect

if TYPE_CHECKING:
    from cells.client import CellClient
    from cells.conftest import Cells


def test_a_topic_is_in_the_cell_that_its_creation_names(client: CellClient, another: CellClient, cells: Cells) -> None:
    near, far = client.topic_in(""), client.topic_in("b")
    another.send(message(near, "1"))
    another.send(message(far, "2"))
    for topic, url in ((near, cells.home), (far, cells.other)):
        assert count(cells.home, "topic", f"name = '{topic}'") == (url == cells.home)
        assert count(cells.other, "topic", f"name = '{topic}'") == (url == cells.other)
    assert bodies(client, near) == [b"1"]
    assert bodies(client, far) == [b"2"]
    assert {near, far} <= client.topics().keys()


def test_one_call_sends_to_several_cells(client: CellClient) -> None:
    near, far = client.topic_in(""), client.topic_in("b")
    results = client.sent(*[message(topic, str(number)) for number, topic in enumerate([near, far, far, near, "none"])])
    assert [result.position.topic for result in results] == [near, far, far, near, ""]
    assert results[-1].error.reason == "TOPIC_NOT_FOUND"
    assert bodies(client, near) == [b"0", b"3"]
    assert bodies(client, far) == [b"1", b"2"]


def test_messages_in_order_are_for_one_cell(client: CellClient) -> None:
    near, far = client.topic_in(""), client.topic_in("b")
    with pytest.raises(grpc.RpcError) as refused:
        client.sent(message(near, "1"), message(far, "2"), in_order=True)
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert reason(refused.value) == "TOPICS_APART"
    assert [each.position.offset for each in client.sent(message(far, "1"), message(far, "2"), in_order=True)] == [0, 1]


def test_a_transaction_is_decided_by_a_broker_that_did_not_prepare_it(client: CellClient, another: CellClient) -> None:
    far = client.topic_in("b")
    one, two = new_id(), new_id()
    for own in (one, two):
        client.prepare("shop", own, [message(far, own)], check_after=60)
    assert another.transaction(one).state == PREPARED
    assert another.commit(one).state == COMMITTED
    assert another.roll_back(two).state == ROLLED_BACK
    assert client.commit(one).state == COMMITTED
    assert client.transaction(two).state == ROLLED_BACK
    assert bodies(client, far) == [one.encode()]
    with pytest.raises(ItemRefused) as refused:
        another.commit(new_id())
    assert refused.value.code is grpc.StatusCode.NOT_FOUND


def test_verdicts_of_one_call_are_for_several_cells(client: CellClient, another: CellClient) -> None:
    near, far = client.topic_in(""), client.topic_in("b")
    ids = [new_id() for _ in range(6)]
    for number, own in enumerate(ids):
        client.prepare("shop", own, [message([near, far][number % 2], own)], check_after=60)
    wrong = [new_id(), "no id"]
    request = transaction_pb2.CommitRequest(transaction_ids=[*ids, *wrong], traceparents=[""] * 8)
    results = another.transactions.Commit(request, timeout=PATIENCE).results
    assert [each.transaction_id for each in results] == [*ids, *wrong]
    assert [each.state for each in results[:6]] == [COMMITTED] * 6
    assert [each.error.code for each in results[6:]] == [5, 3]
    assert bodies(client, near) == sorted(own.encode() for own in ids[::2])
    assert bodies(client, far) == sorted(own.encode() for own in ids[1::2])


def test_a_transaction_over_cells_is_refused(client: CellClient, cells: Cells) -> None:
    near, far = client.topic_in(""), client.topic_in("b")
    own = new_id()
    with pytest.raises(ItemRefused) as refused:
        client.prepare("shop", own, [message(near, "1"), message(far, "2")])
    assert refused.value.reason == "TOPICS_APART"
    assert f"topic {far!r}, topic {near!r}" in str(refused.value) or f"topic {near!r}, topic {far!r}" in str(
        refused.value
    )
    with pytest.raises(ItemRefused):
        client.commit(own)
    for url in (cells.home, cells.other):
        assert count(url, "half_message", f"transaction_id = UNHEX('{uuid.UUID(own).hex}')") == 0


def test_a_transaction_is_not_continued_in_another_cell(client: CellClient, another: CellClient) -> None:
    """Otherwise its COMMIT would release a half of it."""
    near, far = client.topic_in(""), client.topic_in("b")
    own = new_id()
    client.prepare("shop", own, [message(near, "1")], check_after=60)
    further = transaction_pb2.HalfTransaction(transaction_id=own, messages=[message(far, "2")], first_position=1)
    request = transaction_pb2.PrepareRequest(producer_group="shop", transactions=[further])
    for each in (client, another):
        (result,) = each.transactions.Prepare(request, timeout=PATIENCE).results
        assert result.error.reason == "POSITION_GAP"
    further.messages[0].topic = near
    request = transaction_pb2.PrepareRequest(producer_group="shop", transactions=[further])
    (result,) = another.transactions.Prepare(request, timeout=PATIENCE).results
    assert result.state == PREPARED
    assert client.commit(own).state == COMMITTED
    assert bodies(client, near) == [b"1", b"2"]
    assert bodies(client, far) == []


def test_transactions_without_ids_of_one_call_are_for_several_cells(client: CellClient, another: CellClient) -> None:
    near, far = client.topic_in(""), client.topic_in("b")
    items = [transaction_pb2.HalfTransaction(messages=[message(topic, topic)]) for topic in (near, far)]
    request = transaction_pb2.PrepareRequest(producer_group="shop", transactions=items)
    results = client.transactions.Prepare(request, timeout=PATIENCE).results
    assert [each.state for each in results] == [PREPARED] * 2
    for each in results:
        assert another.commit(each.transaction_id).state == COMMITTED
    assert (bodies(client, near), bodies(client, far)) == ([near.encode()], [far.encode()])


def test_producers_are_asked_about_transactions_in_all_cells(client: CellClient, another: CellClient) -> None:
    near, far = client.topic_in(""), client.topic_in("b")
    group = unique("shop")
    ids = {topic: new_id() for topic in (near, far)}
    for topic, own in ids.items():
        client.prepare(group, own, [message(topic, own)])
    checks = another.checks(group)
    for topic, own in ids.items():
        check = checks.next(own)
        assert [each.topic for each in check.messages] == [topic]
        assert checks.commit(check).state == COMMITTED
    assert bodies(client, far) == [ids[far].encode()]
    found = client.transaction(ids[far])
    assert found.op.source == transaction_pb2.VERDICT_SOURCE_CHECK
    assert found.checks[-1].client_id == "asked"


def test_a_group_reads_where_its_topics_are(client: CellClient, another: CellClient, cells: Cells) -> None:
    far, group = client.topic_in("b"), unique("readers")
    client.sent(*[message(far, str(number)) for number in range(4)])
    first, second, third, fourth = another.pull(group, far, lease=30)
    results = client.ack([first.receipt_handle])
    results += client.nack([second.receipt_handle], "not now")
    results += client.extend([third.receipt_handle], 60)
    assert not [result for result in results if result.HasField("error")]
    assert count(cells.home, "consumer_group", f"name = '{group}'") == 0
    assert [each.message.body for each in another.pull(group, far)] == [second.message.body]
    assert {each.topic for each in client.progress(group)} == {far}
    assert group in client.groups()
    stale = client.ack([first.receipt_handle, "no.receipt", fourth.receipt_handle])
    assert [each.error.reason for each in stale] == ["", "RECEIPT_INVALID", ""]


def test_a_consumer_stream_serves_a_group_of_another_cell(client: CellClient, another: CellClient) -> None:
    far, group = client.topic_in("b"), unique("readers")
    subscribe = consumer_pb2.Subscribe(consumer_group=group, topics=[far])
    subscribe.lease_duration.FromSeconds(30)
    outgoing: queue.SimpleQueue[consumer_pb2.ConsumeRequest] = queue.SimpleQueue()
    outgoing.put(consumer_pb2.ConsumeRequest(subscribe=subscribe))
    outgoing.put(consumer_pb2.ConsumeRequest(credits=consumer_pb2.GrantCredits(messages=10)))
    client.send(message(far, "1"))
    for response in another.consume(iter(outgoing.get, None)):
        if response.HasField("deliveries"):
            (delivery,) = response.deliveries.deliveries
            ack = consumer_pb2.AckRequest(receipt_handles=[delivery.receipt_handle])
            outgoing.put(consumer_pb2.ConsumeRequest(request_id=7, ack=ack))
        if response.HasField("outcome"):
            assert response.outcome.request_id == 7
            assert not response.outcome.results
            break
    assert client.pull(group, far) == []


def test_a_stream_tells_of_receipts_that_are_gone_and_goes_on(client: CellClient) -> None:
    far, group = client.topic_in("b"), client.group_in("b")
    outgoing: queue.SimpleQueue[consumer_pb2.ConsumeRequest] = queue.SimpleQueue()
    outgoing.put(consumer_pb2.ConsumeRequest(subscribe=consumer_pb2.Subscribe(consumer_group=group, topics=[far])))
    outgoing.put(consumer_pb2.ConsumeRequest(credits=consumer_pb2.GrantCredits(messages=10)))
    client.send(message(far, "1"))
    received, told = list[bytes](), list[str]()
    for response in client.consume(iter(outgoing.get, None)):
        for delivery in response.deliveries.deliveries:
            received.append(delivery.message.body)
            ack = consumer_pb2.AckRequest(receipt_handles=[delivery.receipt_handle])
            for number in (1, 2):
                outgoing.put(consumer_pb2.ConsumeRequest(request_id=number, ack=ack))
        if response.HasField("outcome"):
            told += [each.error.reason for each in response.outcome.results]
            if response.outcome.request_id == 2 and len(received) == 1:
                client.send(message(far, "2"))
        if len(received) == 2:
            break
    assert (received, told) == ([b"1", b"2"], ["RECEIPT_GONE"])


def test_a_group_is_in_one_cell(client: CellClient) -> None:
    near, far, group = client.topic_in(""), client.topic_in("b"), unique("readers")
    with pytest.raises(grpc.RpcError) as refused:
        client.pull(group, [near, far])
    assert reason(refused.value) == "TOPICS_APART"
    assert client.pull(group, near) == []
    with pytest.raises(grpc.RpcError) as refused:
        client.pull(group, far)
    assert reason(refused.value) == "TOPICS_APART"
    assert group in refused.value.details()
    assert client.pull(client.group_in("b"), far) == []


def test_messages_that_are_handed_on_are_in_one_cell(client: CellClient) -> None:
    near, far, further = client.topic_in(""), client.topic_in("b"), client.topic_in("b")
    client.send(message(far, "1"))
    (delivery,) = client.pull(unique("readers"), far)
    for topic, expected in ((near, "TOPICS_APART"), (further, ""), (near, "RECEIPT_GONE")):
        request = producer_pb2.SendAndAckRequest(
            messages=[message(topic, "2")], receipt_handles=[delivery.receipt_handle]
        )
        try:
            client.producer.SendAndAck(request, timeout=PATIENCE)
            found = ""
        except grpc.RpcError as error:
            found = reason(error)
        assert found == expected
    assert bodies(client, near) == []
    assert bodies(client, further) == [b"2"]


def test_a_sink_is_where_its_topics_are(client: CellClient, another: CellClient, cells: Cells) -> None:
    near, far, name = client.topic_in(""), client.topic_in("b"), unique("sink")
    epoch = sink_pb2.Epoch(sink=name, query_id="q", number=0)
    attempt = new_id()
    prepared = sink_pb2.PrepareEpochRequest(
        epoch=epoch, attempt_id=attempt, transaction_id=new_id(), messages=[message(far, "1")]
    )
    client.sinks.PrepareEpoch(prepared, timeout=PATIENCE)
    committed = sink_pb2.CommitEpochRequest(epoch=epoch)
    committed.attempts.add(attempt_id=attempt, messages=1)
    assert another.sinks.CommitEpoch(committed, timeout=PATIENCE).messages == 1
    assert client.sinks.GetSink(sink_pb2.GetSinkRequest(sink=name), timeout=PATIENCE).sink.committed_epoch == 0
    assert count(cells.home, "sink", f"name = '{name}'") == 0
    assert bodies(client, far) == [b"1"]
    prepared.epoch.number, prepared.messages[0].topic = 1, near
    with pytest.raises(grpc.RpcError) as refused:
        another.sinks.PrepareEpoch(prepared, timeout=PATIENCE)
    assert reason(refused.value) == "TOPICS_APART"
    another.sinks.DeleteSink(sink_pb2.DeleteSinkRequest(sink=name), timeout=PATIENCE)
    assert count(cells.other, "sink", f"name = '{name}'") == 0
    assert count(cells.home, "placement", f"name = '{name}'") == 0


def test_messages_are_found_by_their_ids_and_keys(client: CellClient, another: CellClient) -> None:
    far = client.topic_in("b")
    sent = message(far, "1")
    sent.keys.append("order-1")
    position = client.send(sent)
    assert another.message(position.message_id).message.body == b"1"
    with pytest.raises(grpc.RpcError) as missing:
        another.message(new_id())
    assert missing.value.code() is grpc.StatusCode.NOT_FOUND


def test_messages_are_recalled_wherever_they_wait(client: CellClient, another: CellClient) -> None:
    near, far = client.topic_in(""), client.topic_in("b")
    ids = []
    for topic in (near, far):
        later = message(topic, "later")
        later.delay.FromSeconds(600)
        ids.append(client.send(later).message_id)
    request = producer_pb2.RecallRequest(message_ids=[*ids, new_id()])
    results = another.producer.Recall(request, timeout=PATIENCE).results
    assert [each.HasField("recalled_at") for each in results] == [True, True, False]
    assert results[2].error.code == grpc.StatusCode.NOT_FOUND.value[0]


def test_operators_change_what_is_in_another_cell(client: CellClient, another: CellClient, cells: Cells) -> None:
    far = client.topic_in("b")
    group = client.group_in("b")
    another.update_topic(far, 3)
    client.send(message(far, "1"))
    (delivery,) = client.pull(group, far, lease=30)
    seek = admin_pb2.SeekGroupRequest(group=group, topic=far)
    seek.to.boundary = message_pb2.BOUNDARY_EARLIEST
    assert another.admin.SeekGroup(seek, timeout=PATIENCE).progress
    assert client.topics()[far] == 3
    client.ack([delivery.receipt_handle])
    another.delete_group(group)
    another.delete_topic(far)
    assert far not in client.topics()
    for name in (far, group):
        assert count(cells.home, "placement", f"name = '{name}'") == 0
        assert count(cells.home, "moved_name", f"name = '{name}'") == 0


def test_operators_resolve_transactions_in_all_cells(client: CellClient, another: CellClient) -> None:
    near, far, group = client.topic_in(""), client.topic_in("b"), unique("shop")
    for topic in (near, far, far):
        client.prepare(group, new_id(), [message(topic, "1")], check_after=600)
    request = admin_pb2.ResolveTransactionsRequest(
        producer_group=group, resolution=admin_pb2.RESOLUTION_COMMIT, reason="test", operator="test"
    )
    answers = list(another.admin.ResolveTransactions(request, timeout=PATIENCE))
    assert (answers[-1].matched, answers[-1].resolved) == (3, 3)
    assert [answer.done for answer in answers].count(True) == 1
    assert len(bodies(client, near)) == 1
    assert len(bodies(client, far)) == 2


def test_a_name_is_in_one_cell_only(client: CellClient, another: CellClient) -> None:
    def create(each: CellClient, name: str, cell: str) -> str:
        request = admin_pb2.CreateTopicRequest(topic=admin_pb2.Topic(name=name), cell=cell)
        try:
            each.admin.CreateTopic(request, timeout=PATIENCE)
        except grpc.RpcError as error:
            return reason(error)
        return ""

    near, far = client.topic_in(""), client.topic_in("b")
    assert create(another, near, "b") == "TOPIC_EXISTS"
    assert create(another, far, "b") == "TOPIC_EXISTS"
    assert create(another, far, "") == "TOPIC_EXISTS"
    assert create(another, far, "home") == "INVALID_ARGUMENT"
    assert create(another, unique("orders"), "c") == "INVALID_ARGUMENT"
    assert create(another, unique("orders"), "*") == ""


def test_numbers_are_given_by_one_cell_only(client: CellClient, cells: Cells) -> None:
    found: set[int] = set()
    total = 0
    for cell, url in (("", cells.home), ("b", cells.other)):
        for _ in range(5):
            client.topic_in(cell, queues=3)
        with closing(connect(url)) as own, own.cursor() as cursor:
            cursor.execute("SELECT queue_id FROM queue")
            rows = {row[0] for row in cursor.fetchall()}
        assert {number % 64 for number in rows} == {2 if cell else 1}
        found |= rows
        total += len(rows)
    assert len(found) == total


def test_a_broker_reports_the_same_of_itself_in_each_cell(cells: Cells) -> None:
    """By its start a process is told apart from others of its name and number, as in containers."""

    def reported(url: str) -> set[tuple[object, ...]]:
        with closing(connect(url)) as own, own.cursor() as cursor:
            cursor.execute("SELECT broker_id, host, pid, started_at, endpoint FROM broker")
            return set(cursor.fetchall())

    until = time.monotonic() + PATIENCE
    while (at_home := reported(cells.home)) != reported(cells.other) and time.monotonic() < until:
        time.sleep(0.2)
    assert reported(cells.other) == at_home
    assert {row[0] for row in at_home} == {"one", "two"}
    assert all(row[3] and row[4] in {cells.one.endpoint, cells.two.endpoint} for row in at_home)
