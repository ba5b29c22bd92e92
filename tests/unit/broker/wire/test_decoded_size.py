"""What requests will take in memory, told from their bytes."""

from __future__ import annotations

import pytest

from broker.api.converters.filters import MAX_FILTERS, topic_filters_in
from broker.errors import InvalidArgument
from broker.wire.decoded_size import decoded_size
from halfmq.v1 import consumer_pb2, message_pb2, producer_pb2, transaction_pb2

SEND, PREPARE = producer_pb2.SendRequest, transaction_pb2.PrepareRequest
MIB = 1024 * 1024


def message(body: int, properties: int = 3) -> message_pb2.Message:
    return message_pb2.Message(
        topic="orders",
        body=b"\xff" * body,
        keys=["key"],
        properties={f"name{number}": "value" for number in range(properties)},
    )


def test_as_many_messages_as_are_allowed_pass() -> None:
    assert decoded_size(SEND(messages=[message(4000)] * 4096).SerializeToString(), SEND.DESCRIPTOR) < 32 * MIB
    decoded_size(SEND(messages=[message(10, 128)] * 4096).SerializeToString(), SEND.DESCRIPTOR)
    many = [transaction_pb2.HalfTransaction(messages=[message(20)] * 100)] * 1000
    decoded_size(PREPARE(producer_group="g", transactions=many).SerializeToString(), PREPARE.DESCRIPTOR)


def test_bodies_weigh_nothing() -> None:
    assert decoded_size(SEND(messages=[message(7 * MIB)]).SerializeToString(), SEND.DESCRIPTOR) < 10_000


def test_as_many_receipts_as_are_allowed_pass() -> None:
    request = consumer_pb2.AckRequest(receipt_handles=["1.2.3"] * 100_000)
    decoded_size(request.SerializeToString(), request.DESCRIPTOR)


@pytest.mark.parametrize(
    ("kind", "raw"),
    [
        (SEND, b"\x0a\x00" * MIB),
        (PREPARE, b"\x12\x00" * MIB),
        (PREPARE, b"\x12\x80\x80\x80\x01" + b"\x12\x00" * MIB),
        (PREPARE, (b"\x12\xfe\x07" + b"\x12\x00" * 511) * 4096),
        (SEND, b"\x0a\x80\x80\x80\x04" + b"\x2a\x00" * (4 * MIB)),
        (SEND, (b"\x0a\x64" + b"\x2a\x00" * 50) * 200_000),
        (SEND, b"\x98\x06\x01" * 4 * MIB),
    ],
    ids=["messages", "transactions", "half messages", "in each a few", "keys", "in each a few keys", "unknown"],
)
def test_too_many_items_are_refused(kind: type[SEND | PREPARE], raw: bytes) -> None:
    with pytest.raises(InvalidArgument, match="too many fields and items") as refused:
        decoded_size(raw, kind.DESCRIPTOR)
    assert refused.value.reason == "REQUEST_TOO_LARGE"


@pytest.mark.parametrize("raw", [b"\x0a", b"\x0a\xff", b"\x0a\xff\xff", b"\xff" * 100, b"\x0e", b"\x09", b"\x0a\x05ab"])
def test_what_is_no_request_is_left_to_the_decoder(raw: bytes) -> None:
    assert decoded_size(raw, SEND.DESCRIPTOR) <= 1000


def test_filters_are_bounded_together() -> None:
    text = " OR ".join(f"a{number:03} = 1" for number in range(300))
    most = MAX_FILTERS // len(text)
    given = [
        consumer_pb2.TopicFilter(topic=f"topic{number}", filter=message_pb2.Filter(sql=text))
        for number in range(most + 1)
    ]
    assert len(topic_filters_in(consumer_pb2.Subscribe(filters=given[:most]).filters)) == most
    with pytest.raises(InvalidArgument, match="are allowed"):
        topic_filters_in(consumer_pb2.Subscribe(filters=given).filters)
