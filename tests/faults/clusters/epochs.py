"""A sink that writes epochs, one after the other, as Spark's does: each of them is there once, or not yet."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

import grpc

from faults.client import Client, message, new_id, unique
from halfmq.v1 import sink_pb2, sink_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

MESSAGES = 20
PATIENCE = 10.0


class Epochs:
    """A context manager: inside of it epochs are written, by all brokers in turns."""

    def __init__(self, endpoints: Sequence[str]) -> None:
        self.committed = 0
        self.error: BaseException | None = None
        self._sink = unique("sink")
        with Client(endpoints[0]) as client:
            self.topic = client.make_topic(queues=2)
        self._endpoints = endpoints
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._guard, name="epochs", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join(120)
        assert not self._thread.is_alive(), "the sink hangs"

    def judge(self, client: Client) -> list[str]:
        """What contradicts that each epoch was written once, in its order."""
        if self.error is not None:
            return [f"the sink ended: {self.error}"]
        found = Counter(int(each.body) for entries in client.log(self.topic).values() for each in entries)
        # The last one may have been committed without an answer.
        last = max(found, default=-1)
        wrong = [f"epoch {number} was acknowledged and is not there" for number in range(last + 1, self.committed)]
        wrong += [
            f"epoch {number} has {found[number]} of {MESSAGES} messages"
            for number in range(last + 1)
            if found[number] != MESSAGES
        ]
        if last > self.committed:
            wrong.append(f"epoch {last} is there, and only {self.committed} were begun")
        return wrong

    def _guard(self) -> None:
        try:
            self._write()
        except BaseException as error:
            self.error = error

    def _write(self) -> None:
        with ExitStack() as stack:
            channels = [stack.enter_context(grpc.insecure_channel(each)) for each in self._endpoints]
            stubs = [sink_pb2_grpc.SinkServiceStub(channel) for channel in channels]
            turn = 0
            while not self._stopping.is_set():
                turn += 1
                try:
                    self._write_epoch(stubs[turn % len(stubs)], self.committed)
                except grpc.RpcError as error:
                    if error.code() not in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}:
                        raise
                    self._stopping.wait(0.2)
                else:
                    self.committed += 1

    def _write_epoch(self, stub: sink_pb2_grpc.SinkServiceStub, number: int) -> None:
        """Writes an epoch, or writes it again: with another attempt, as a task of Spark that is repeated."""
        epoch = sink_pb2.Epoch(sink=self._sink, query_id="query", number=number)
        attempt = new_id()
        messages = [message(self.topic, str(number)) for _ in range(MESSAGES)]
        prepared = stub.PrepareEpoch(
            sink_pb2.PrepareEpochRequest(epoch=epoch, attempt_id=attempt, transaction_id=new_id(), messages=messages),
            timeout=PATIENCE,
        )
        if prepared.already_committed:
            return
        stub.CommitEpoch(
            sink_pb2.CommitEpochRequest(
                epoch=epoch, attempts=[sink_pb2.EpochAttempt(attempt_id=attempt, messages=MESSAGES)]
            ),
            timeout=PATIENCE,
        )
