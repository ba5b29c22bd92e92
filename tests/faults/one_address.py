"""For tests of a broker that knows one address: where that leads to, and sends that go on."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import grpc
from pymysql.err import OperationalError

from faults.client import UNAVAILABLE, ItemRefused, code_of, message, new_id
from support.databases import connect

if TYPE_CHECKING:
    from faults.client import Client

PATIENCE = 60.0


def server_of(database: str) -> int:
    """The number of the server that the proxy leads to."""
    with connect(database) as own, own.cursor() as cursor:
        cursor.execute("SELECT @@server_id")
        ((number,),) = cursor.fetchall()
        return int(number)


def await_server(database: str, number: int) -> None:
    """Waits until the proxy leads to this server."""
    until = time.monotonic() + PATIENCE
    while (found := _server_or_none(database)) != number:
        assert time.monotonic() < until, f"the proxy does not lead to server {number}, but to {found}"
        time.sleep(0.1)


def _server_or_none(database: str) -> int | None:
    try:
        return server_of(database)
    except OperationalError:
        return None


def send(client: Client, topic: str) -> bytes:
    """Sends a message, repeated until it is acknowledged; its body."""
    body = new_id().encode()
    sending = message(topic, body, message_id=new_id())
    until = time.monotonic() + PATIENCE
    while True:
        try:
            client.send(sending)
        except (grpc.RpcError, ItemRefused) as error:
            code = error.code if isinstance(error, ItemRefused) else code_of(error)
            if code is not UNAVAILABLE or time.monotonic() > until:
                raise
            time.sleep(0.1)
        else:
            return body
