"""Refused calls grow neither memory nor the log nor the record, however many there are, and whatever they name."""

from __future__ import annotations

import asyncio
import itertools
import json
import sqlite3
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from acceptance.client import message
from broker.rocketmq.protocol import Code, service_pb2
from fuzz.authority import ACCESS_KEY, AUDIENCE, SECRET, Authority, Headers, bearer, good_claims, hidden, signed
from halfmq.v1 import consumer_pb2, producer_pb2
from support.brokers import BrokerProcess
from support.memory import MIB, forget_peak, resident
from support.raw_calls import RawCalls
from support.rocketmq_protocol import resource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

CALLS, UNDER_WAY = 2000, 50
"""Of each kind; a quarter more to begin with."""
NAMES = 60
"""Topics that a request names."""
MOST_GROWTH = 12 * MIB
"""Of all kinds together: 600 bytes a call."""
MOST_LINES, MOST_RECORDS = 30, 1000
SEND, PULL = "/halfmq.v1.ProducerService/Send", "/halfmq.v1.ConsumerService/Pull"
ROUTE = "/apache.rocketmq.v2.MessagingService/QueryRoute"
UNIMPLEMENTED, UNAUTHENTICATED, DENIED = 12, 16, 7
Call = tuple[str, Headers, bytes, int]
"""Path, headers, request, and gRPC's code of the answer."""

_numbers = itertools.count()


def _name() -> str:
    """One that nobody had before, as long as names may be."""
    return f"{next(_numbers):06}".ljust(120, "x")


def _send() -> bytes:
    return producer_pb2.SendRequest(messages=[message(_name()) for _ in range(NAMES)]).SerializeToString()


def _pull() -> bytes:
    return consumer_pb2.PullRequest(consumer_group=_name(), topics=[_name()]).SerializeToString()


def _route() -> bytes:
    return bytes(service_pb2.QueryRouteRequest(topic=resource(_name())).SerializeToString())


def _jwt() -> str:
    """Of a key that nobody knows."""
    header = {"typ": "JWT", "alg": "ES256", "kid": _name()}
    return f"{hidden(json.dumps(header).encode())}.{hidden(json.dumps(good_claims()).encode())}.{'A' * 86}"


KINDS: dict[str, Callable[[Headers], Call]] = {
    "nothing shown": lambda _: (SEND, (), _send(), UNAUTHENTICATED),
    "wrong tokens": lambda _: (SEND, bearer(_name()), _send(), UNAUTHENTICATED),
    "JWTs of unknown keys": lambda _: (SEND, bearer(_jwt()), b"", UNAUTHENTICATED),
    "headers that are not UTF-8": lambda _: (SEND, bearer(_name().encode() + b"\xff"), b"", UNAUTHENTICATED),
    "unknown methods": lambda good: (f"/halfmq.v1.ProducerService/{_name()}", good, b"", UNIMPLEMENTED),
    "unknown services": lambda good: (f"/halfmq.{_name()}/Send", good, b"", UNIMPLEMENTED),
    "denied topics, one by one": lambda good: (SEND, good, _send(), 0),
    "denied groups": lambda good: (PULL, good, _pull(), DENIED),
    "wrong signatures": lambda _: (ROUTE, signed(key=_name()), _route(), 0),
    "denied topics of RocketMQ's clients": lambda _: (ROUTE, signed(), _route(), 0),
}


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture
def keys_url(authority: Authority) -> Iterator[str]:
    """Where the broker fetches the keys of JWTs."""

    class Keys(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(authority.key_set)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Keys) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/keys"
        server.shutdown()
        thread.join()


async def make(calls: RawCalls, kind: str, good: Headers, number: int) -> None:
    left = iter(range(number))

    async def work() -> None:
        for _ in left:
            path, headers, request, code = KINDS[kind](good)
            answer = await calls.call(path, headers, request)
            assert answer.code == code, answer
            if path == ROUTE:
                status = service_pb2.QueryRouteResponse.FromString(answer.response).status.code
                assert status in {Code.UNAUTHORIZED, Code.FORBIDDEN}
            elif path == SEND and not code:
                results = producer_pb2.SendResponse.FromString(answer.response).results
                assert {result.error.code for result in results} == {DENIED}

    await asyncio.gather(*(work() for _ in range(UNDER_WAY)))


async def grown_by(endpoint: str, process: int, good: Headers) -> int:
    """Bytes that calls of all kinds add at most, after the first ones."""
    async with RawCalls.to(endpoint) as calls:
        for kind in KINDS:
            await make(calls, kind, good, CALLS // 4)
        before = resident(process)
        forget_peak(process)
        for kind in KINDS:
            await make(calls, kind, good, CALLS)
            print(f"{kind}: {(resident(process, peak=True) - before) / MIB:.1f} MiB more than before")
    return resident(process, peak=True) - before


def test_refused_calls_leave_nothing_behind(authority: Authority, keys_url: str, tmp_path: Path) -> None:
    (tmp_path / "tokens.toml").write_bytes(authority.tokens_file)
    (tmp_path / "keys").write_text(f"{ACCESS_KEY}:{SECRET}\n")
    with BrokerProcess(
        f"sqlite:///{tmp_path / 'halfmq.db'}",
        access=True,
        access_tokens=tmp_path / "tokens.toml",
        access_without_tls=True,
        jwt_keys=keys_url,
        jwt_audience=AUDIENCE,
        rocketmq=True,
        rocketmq_keys=tmp_path / "keys",
        rocketmq_signature_window=0,
    ) as broker:
        grown = asyncio.run(grown_by(broker.endpoint, broker.process.pid, bearer(authority.token)))
        written = broker.log
    print(written)
    assert grown < MOST_GROWTH
    assert len(written.splitlines()) <= MOST_LINES
    assert len(written) <= MOST_LINES * 500
    assert "[error" not in written
    assert "Traceback" not in written
    assert authority.token not in written
    with sqlite3.connect(tmp_path / "halfmq.db") as database:
        ((records,),) = database.execute("SELECT count(*) FROM audit_record")
    assert records <= MOST_RECORDS
