"""Refused requests leave nothing behind, whatever the garbage collector does: these brokers run without it."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from acceptance.client import PATIENCE, message
from halfmq.v1 import producer_pb2, transaction_pb2
from support.memory import MIB, resident

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CALLS, AT_ONCE, SIZE = 20, 4, 20 * MIB
MOST_GROWTH = 150 * MIB
_CHECKOUT = Path(__file__).parents[2]
_WITHOUT_COLLECTOR = "import gc; gc.disable(); from halfmq_cli import main; main()"

SEND, PREPARE = "/halfmq.v1.ProducerService/Send", "/halfmq.v1.TransactionService/Prepare"
CHECKS, CONSUME = "/halfmq.v1.TransactionService/CheckTransactions", "/halfmq.v1.ConsumerService/Consume"
PULL, EPOCH = "/halfmq.v1.ConsumerService/Pull", "/halfmq.v1.SinkService/PrepareEpoch"

LARGE = [message("nowhere", b"\0" * (SIZE // 5)) for _ in range(5)]
REQUESTS: dict[str, tuple[str, bytes]] = {
    "no such producer group": (
        PREPARE,
        transaction_pb2.PrepareRequest(
            producer_group="?", transactions=[transaction_pb2.HalfTransaction(messages=LARGE)]
        ).SerializeToString(),
    ),
    "no such topic": (SEND, producer_pb2.SendRequest(messages=LARGE).SerializeToString()),
    "no such topic, prepared": (
        PREPARE,
        transaction_pb2.PrepareRequest(
            producer_group="makers", transactions=[transaction_pb2.HalfTransaction(messages=LARGE)]
        ).SerializeToString(),
    ),
    "a body too large": (
        SEND,
        producer_pb2.SendRequest(messages=[message("nowhere", b"\0" * SIZE)]).SerializeToString(),
    ),
    "no protobuf": (SEND, b"\xff" * SIZE),
    "no protobuf, of a look-up": ("/halfmq.v1.QueryService/GetMessage", b"\xff" * SIZE),
    "no protobuf, of a stream": (CONSUME, b"\xff" * SIZE),
    "no protobuf, of a pull": (PULL, b"\xff" * SIZE),
    "not the first request of a stream": (
        CHECKS,
        transaction_pb2.CheckTransactionsRequest(
            answer=transaction_pb2.CheckAnswer(reason="x" * SIZE)
        ).SerializeToString(),
    ),
    "no protobuf, of a sink": (EPOCH, b"\xff" * SIZE),
}


@contextmanager
def broker_without_collector(folder: Path, *options: str) -> Iterator[tuple[str, int]]:
    """A broker whose garbage collector never runs; its address and its process."""
    command = [sys.executable, "-c", _WITHOUT_COLLECTOR, "serve", "--listen=127.0.0.1:0", "--drain=2"]
    command += [f"--database=sqlite:///{folder / 'halfmq.db'}", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=_CHECKOUT) as process:
        assert process.stdout is not None
        try:
            endpoint = process.stdout.readline().strip()
            assert endpoint
            yield endpoint, process.pid
        finally:
            process.terminate()
            process.wait(PATIENCE)


def refused(endpoint: str, method: str, request: bytes) -> None:
    """Makes a call of few bytes on the wire, and waits for its end; whoever refuses it may do so in its answer."""
    with grpc.insecure_channel(
        endpoint,
        options=[("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)],
        compression=grpc.Compression.Gzip,
    ) as channel:
        call: Any = channel.stream_stream(method)
        try:
            for _ in call(iter([request]), timeout=2 * PATIENCE):
                pass
        except grpc.RpcError as error:
            assert error.code() is not grpc.StatusCode.UNKNOWN, error
            assert error.code() is not grpc.StatusCode.INTERNAL, error


def growth(endpoint: str, process: int, call: Callable[[], None]) -> int:
    """By how much a broker is larger after many calls than after the first few."""
    for _ in range(3):
        call()
    before = resident(process)
    with ThreadPoolExecutor(AT_ONCE) as threads:
        for done in [threads.submit(call) for _ in range(CALLS)]:
            done.result()
    grown = resident(process) - before
    print(f"\n{before / MIB:.0f} MiB before, grown by {grown / MIB:.0f} MiB")
    return grown


@pytest.mark.parametrize("name", REQUESTS)
def test_refused_requests_leave_nothing_behind(name: str, tmp_path: Path) -> None:
    method, request = REQUESTS[name]
    with broker_without_collector(tmp_path) as (endpoint, process):
        assert growth(endpoint, process, lambda: refused(endpoint, method, request)) < MOST_GROWTH


def test_calls_beyond_the_bound_leave_nothing_behind(tmp_path: Path) -> None:
    method, request = REQUESTS["no such topic"]
    with broker_without_collector(tmp_path, "--max-calls=1") as (endpoint, process):
        assert growth(endpoint, process, lambda: refused(endpoint, method, request)) < MOST_GROWTH
