"""The sink while no broker answers: it goes on trying, and says so once."""

from __future__ import annotations

import logging
import socket
import threading
import time

import pytest

from client_core.connection import Connection, RetryConfig
from client_core.testing import embedded_broker
from connect.cdc.sources import PATIENCE
from halfmq_connect.cdc.sink import Sink


def test_a_broker_that_is_away_is_told_once_and_once_again_when_it_is_back(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        endpoint = f"127.0.0.1:{free.getsockname()[1]}"
    caplog.set_level(logging.WARNING, "halfmq.connect")
    sink = Sink(Connection(endpoint, None, RetryConfig(deadline=PATIENCE)), "shop")
    claims: list[bytes | None] = []
    claiming = threading.Thread(target=lambda: claims.append(sink.claim()))
    claiming.start()
    until = time.monotonic() + PATIENCE
    while not caplog.messages and time.monotonic() < until:
        time.sleep(0.05)
    time.sleep(1)  # It goes on trying meanwhile.
    assert len(caplog.messages) == 1
    assert "the broker does not answer" in caplog.messages[0]
    assert endpoint in caplog.messages[0]
    with embedded_broker(listen=endpoint):
        claiming.join(PATIENCE)
        sink.close()
    assert claims == [None]
    assert len(caplog.messages) == 2
    assert "the broker answers again" in caplog.messages[1]
