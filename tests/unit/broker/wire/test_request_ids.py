"""What a request is about, as the log tells it."""

from __future__ import annotations

from broker.wire.request_ids import LONGEST, MOST_IDS, ids_of_request
from halfmq.v1 import admin_pb2, consumer_pb2, message_pb2, producer_pb2, query_pb2, transaction_pb2


def test_ids_and_names_of_the_request_itself() -> None:
    assert ids_of_request(query_pb2.GetMessageRequest(message_id="m")) == {"message_id": "m"}
    prepare = transaction_pb2.PrepareRequest(producer_group="shop")
    prepare.transactions.add(transaction_id="t", messages=[message_pb2.Message(topic="orders")])
    assert ids_of_request(prepare) == {"group": "shop", "transaction_id": "t"}
    commit = transaction_pb2.CommitRequest(transaction_ids=["a", "b"])
    assert ids_of_request(commit) == {"transaction_ids": ["a", "b"]}


def test_of_several_messages_the_ids_are_a_list_and_what_they_share_is_told_once() -> None:
    request = producer_pb2.SendRequest()
    for own in ("a", "b"):
        request.messages.add(topic="orders", message_id=own)
    assert ids_of_request(request) == {"topic": "orders", "message_ids": ["a", "b"]}


def test_only_so_many_and_so_much_of_each() -> None:
    request = transaction_pb2.CommitRequest(transaction_ids=["x" * 100_000] * 1000)
    assert ids_of_request(request) == {"transaction_ids": ["x" * LONGEST] * MOST_IDS}


def test_a_number_with_the_name_of_a_list_and_what_is_no_request_have_none() -> None:
    assert ids_of_request(consumer_pb2.GrantCredits(messages=7)) == {}
    assert ids_of_request(admin_pb2.CreateTopicRequest(topic=admin_pb2.Topic(name="orders"))) == {"topic": "orders"}
    assert ids_of_request(None) == {}


def test_messages_of_rocketmqs_protocol() -> None:
    from broker.rocketmq.protocol import definition_pb2, service_pb2

    message = definition_pb2.Message(topic=definition_pb2.Resource(name="orders"))
    message.system_properties.message_id = "01AB"
    request = service_pb2.SendMessageRequest(messages=[message])
    assert ids_of_request(request) == {"topic": "orders", "message_id": "01AB"}
    ended = service_pb2.EndTransactionRequest(
        topic=definition_pb2.Resource(name="orders"), message_id="01AB", transaction_id="t"
    )
    assert ids_of_request(ended) == {"topic": "orders", "message_id": "01AB", "transaction_id": "t"}
