"""The sink while no broker answers: it goes on trying, and says so once."""

from __future__ import annotations

import logging
import socket
import threading
import time

import pytest

from client_core.admin import Admin
from client_core.connection import Connection, RetryConfig
from client_core.testing import embedded_broker
from connect.cdc.sources import PATIENCE, Topic
from halfmq.v1.message_pb2 import Message
from halfmq_connect.cdc.pieces import Piece
from halfmq_connect.cdc.positions import Gtid, MariaDbPosition
from halfmq_connect.cdc.publishing import EPOCH_MESSAGES, Progress, Publisher
from halfmq_connect.cdc.sink import Sink
from halfmq_connect.cdc.state import State


def test_a_broker_that_is_away_is_told_once_and_once_again_when_it_is_back(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        endpoint = f"127.0.0.1:{free.getsockname()[1]}"
    caplog.set_level(logging.WARNING, "halfmq.connect")
    sink = Sink(Connection(endpoint, None, RetryConfig(deadline=PATIENCE)), "shop")
    claims: list[bytes | None] = []
    claiming = threading.Thread(target=lambda: claims.append(sink.claim()))
    before = {each.ident for each in threading.enumerate()}

    def told() -> list[str]:
        """Without what a thread of another test has to say."""
        return [record.getMessage() for record in caplog.records if record.thread not in before]

    claiming.start()
    until = time.monotonic() + PATIENCE
    while not told() and time.monotonic() < until:
        time.sleep(0.05)
    time.sleep(1)  # It goes on trying meanwhile.
    assert len(told()) == 1
    assert "the broker does not answer" in told()[0]
    assert endpoint in told()[0]
    with embedded_broker(listen=endpoint):
        claiming.join(PATIENCE)
        sink.close()
    assert claims == [None]
    assert len(told()) == 2
    assert "the broker answers again" in told()[1]


def pieces(count: int, messages: int, size: int) -> list[Piece]:
    """Whole transactions of some messages, which have this many bytes of properties."""
    message = Message(topic="rows", body=b"b", properties={"p": "x" * size})
    found = []
    for number in range(1, count + 1):
        piece = Piece(Gtid("0", number, f"0-1-{number}"), last=True)
        for _ in range(messages):
            piece.add(message, message.ByteSize())
        found.append(piece)
    return found


@pytest.mark.parametrize(
    ("count", "messages", "size"),
    [(40, 60, 16_000), (5, 999, 0)],
    ids=["of bytes that are not in bodies", "of messages"],
)
def test_an_epoch_has_no_more_than_a_request_may_have(count: int, messages: int, size: int) -> None:
    with embedded_broker() as broker:
        with Admin(broker.endpoint) as admin:
            admin.create_topic("rows", queues=1)
        sink = Sink(Connection(broker.endpoint), "shop")
        sink.claim()
        progress = Progress()
        publisher = Publisher("shop", sink, State(MariaDbPosition({})), "mariadb", progress)
        for piece in pieces(count, messages, size):
            publisher.take(piece)
        publisher.end()
        sink.close()
        assert (progress.transactions, progress.messages) == (count, count * messages)
        assert progress.messages <= progress.epochs * EPOCH_MESSAGES
        assert len(Topic(broker.endpoint).read()) == count * messages
