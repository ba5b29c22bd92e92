"""The subscription's sink at the broker: epochs of messages, each with the state that follows it."""

from __future__ import annotations

import re
import time
import uuid
from typing import TYPE_CHECKING, Any

import grpc

from client_core.connection import BackgroundRunner, BrokerLink
from client_core.connection.statuses import is_retryable
from client_core.errors import BrokerFailed, BrokerUnavailable, RequestRefused
from halfmq.v1 import sink_pb2
from halfmq_connect.cdc.errors import CannotFollow, Interrupted, MessageRefused, TakenOver, WrongSetting
from halfmq_connect.cdc.sizes import REMEDY, described
from halfmq_connect.outages import Outage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from client_core.connection import Broker, Connection
    from halfmq.v1.message_pb2 import Message

__all__ = ["Sink"]

LOOK_SECONDS = 0.5
GRACE_SECONDS = 10.0
"""How long a call is waited for once the process is to end."""
_MESSAGE = re.compile(r"(?:transactions\[(\d+)\]\.)?messages\[(\d+)\]")
_AGAIN = {"EPOCH_INCOMPLETE", "TRANSACTION_NOT_FOUND"}


class Sink:
    """Publishes under a name; each session has its own id, so that what an earlier one sent late is refused."""

    def __init__(self, connection: Connection, name: str, stopping: Callable[[], bool] = lambda: False) -> None:
        """Reads the settings; nothing is connected yet.

        Args:
            connection: How to reach the brokers.
            name: The subscription.
            stopping: Tells that calls are not to be waited for much longer.
        """
        self._name = f"cdc-{name}"
        self._stopping = stopping
        self._mine: set[str] = set()
        self._link = BrokerLink(connection)
        self._runner = BackgroundRunner("cdc")
        self._outage = Outage("the broker")
        self._query = ""
        self._epoch = 0

    def claim(self) -> bytes | None:
        """Begins a session: takes the sink over, and returns the state that was stored last.

        Raises:
            TakenOver: Another process has it since this one's last session.
            Interrupted: No broker answers.
        """
        if self._query and (owner := self._find().query_id) and owner not in self._mine:
            raise TakenOver(_TAKEN)
        self._query, self._epoch = f"cdc-{uuid.uuid4()}", 0
        self._mine.add(self._query)
        self._ask(
            lambda broker: broker.sinks.CommitEpoch,
            sink_pb2.CommitEpochRequest(epoch=self._here(take_over=True)),
        )
        found = self._find()
        if found.query_id != self._query:
            raise TakenOver(_TAKEN)
        return found.position if found.HasField("position") else None

    def commit(
        self,
        transactions: Sequence[tuple[str, Sequence[Message]]],
        state: bytes,
        written: tuple[str, int] | None = None,
    ) -> None:
        """Publishes transactions, or what was written under an attempt, and stores the state: all of it, or nothing.

        Raises:
            TakenOver: Another process has the sink.
            CannotFollow: The broker refuses a message.
            Interrupted: No broker answers; the outcome is not known.
        """
        request = sink_pb2.CommitEpochRequest(
            epoch=self._next(),
            transactions=[sink_pb2.EpochTransaction(transaction_id=own, messages=some) for own, some in transactions],
            position=state,
        )
        if written is not None:
            request.attempts.append(sink_pb2.EpochAttempt(attempt_id=written[0], messages=written[1]))
        self._ask(lambda broker: broker.sinks.CommitEpoch, request)
        self._epoch += 1

    def prepare(self, attempt_id: str, transaction_id: str, messages: Sequence[Message]) -> None:
        """Stores a part of a large transaction for the next commit.

        Raises:
            TakenOver, CannotFollow, Interrupted: As for commit.
        """
        request = sink_pb2.PrepareEpochRequest(
            epoch=self._next(), attempt_id=attempt_id, transaction_id=transaction_id, messages=messages
        )
        self._ask(lambda broker: broker.sinks.PrepareEpoch, request)

    def close(self) -> None:
        """Ends the connections."""
        if self._runner.started:
            self._runner.run(self._link.close())
        self._runner.close()

    def _here(self, *, take_over: bool = False) -> sink_pb2.Epoch:
        return sink_pb2.Epoch(sink=self._name, query_id=self._query, number=self._epoch, take_over=take_over)

    def _next(self) -> sink_pb2.Epoch:
        return sink_pb2.Epoch(sink=self._name, query_id=self._query, number=self._epoch + 1)

    def _find(self) -> sink_pb2.Sink:
        try:
            found: sink_pb2.GetSinkResponse = self._ask(
                lambda broker: broker.sinks.GetSink, sink_pb2.GetSinkRequest(sink=self._name)
            )
        except _Gone:
            return sink_pb2.Sink()
        return found.sink

    def _ask(self, method: Callable[[Broker], Any], request: Any) -> Any:
        try:
            return self._wait(self._runner.submit(self._call(method, request)))
        except RequestRefused as error:
            if error.reason == "SINK_TAKEN":
                # A claim of an earlier session that came late leads to another session.
                if self._find().query_id in self._mine:
                    raise Interrupted("the sink went back to an earlier session of this process") from None
                raise TakenOver(_TAKEN) from None
            if error.reason == "SINK_NOT_FOUND":
                raise _Gone from None
            if error.reason in _AGAIN:
                raise Interrupted(f"the broker has not all that was written: {error}") from error
            if error.reason == "TOPIC_NOT_FOUND":
                raise WrongSetting(f"{error}; create the topic at the broker", field="topic") from None
            raise _refusal(error, request) from error
        except (BrokerUnavailable, BrokerFailed) as error:
            raise Interrupted(f"the broker does not take this now: {error}") from error

    async def _call(self, method: Callable[[Broker], Any], request: Any) -> Any:
        """One call, tried for as long as the connection's settings say; the first failure and the end are logged."""

        async def send(broker: Broker, timeout: float) -> Any:  # noqa: ASYNC109 - gRPC's own
            try:
                answer = await method(broker)(request, timeout=timeout)
            except grpc.aio.AioRpcError as error:
                if is_retryable(error):
                    self._outage.note(f"{broker.endpoint}: {error.code().name}: {error.details()}")
                else:
                    self._outage.over()
                raise
            self._outage.over()
            return answer

        return await self._link.attempt(send)

    def _wait(self, call: Future[Any]) -> Any:
        until = None
        while True:
            try:
                return call.result(LOOK_SECONDS)
            except TimeoutError:
                if call.done():
                    raise
                if until is None and self._stopping():
                    until = time.monotonic() + GRACE_SECONDS
                if until is not None and time.monotonic() > until:
                    call.cancel()
                    raise Interrupted("stopped while the broker did not answer; the next start goes on") from None


def _refusal(error: RequestRefused, request: Any) -> CannotFollow:
    """What the broker refuses, and which row that is."""
    told = f"({error.reason}, {error.field or 'request'}): {error}"
    found = _MESSAGE.match(error.field)
    if found is None:
        return CannotFollow(f"the broker refuses this {told}. Nothing was skipped")
    transaction, number = int(found[1] or 0), int(found[2])
    messages = request.messages if found[1] is None else request.transactions[transaction].messages
    return MessageRefused(f"the broker refuses {described(messages[number])} {told}. {REMEDY}", transaction)


class _Gone(Exception):
    """There is no such sink."""


_TAKEN = (
    "another process subscribed under this name; this one published nothing since. One process follows a subscription"
    " at a time: end the other one, or name this one otherwise"
)
