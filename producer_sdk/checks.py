"""The check stream: the broker sends checks of local transactions, and gets the listener's answers."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, timedelta
from typing import TYPE_CHECKING

import grpc

from client_core.connection import HEARTBEAT, Duplex, Reconnect
from client_core.connection.statuses import HOPELESS, as_halfmq_error
from client_core.encoding import from_wire
from client_core.errors import RequestRefused
from client_core.message import HalfMessages
from client_core.states import LocalTransactionState
from client_core.tracing import current_tracing
from halfmq.v1 import transaction_pb2 as pb

if TYPE_CHECKING:
    from client_core.connection import Broker, BrokerLink
    from producer_sdk.listener import ListenerCaller

__all__ = ["CheckStream"]

_log = logging.getLogger("halfmq.producer")

# Seconds that a broker gets to end the stream after it was half-closed.
_LAST_WORDS = 1.0
# Seconds until the stream is retried at a broker that refused it.
_WAIT_AFTER_REFUSAL = 30.0

_VERDICTS = {
    LocalTransactionState.COMMIT: pb.CHECK_VERDICT_COMMIT,
    LocalTransactionState.ROLLBACK: pb.CHECK_VERDICT_ROLLBACK,
    LocalTransactionState.UNKNOWN: pb.CHECK_VERDICT_UNKNOWN,
}


class CheckStream:
    """Keeps one stream to one of the brokers open, until the producer is closed.

    Any broker can check any transaction of the group, so one stream is enough. A verdict counts as delivered when the
    broker has confirmed it; until then it is resent on every new stream.
    """

    def __init__(self, link: BrokerLink, group: str, client_id: str, listener: ListenerCaller) -> None:
        """Connects nothing yet."""
        self._link = link
        self._group = group
        self._client_id = client_id
        self._about = {"group": group, "client_id": client_id}
        self._listener = listener
        # Set while registered at a broker, or while the last attempt to register was refused.
        self._answered = asyncio.Event()
        self._refusal: RequestRefused | None = None
        self._closing = asyncio.Event()
        self._duplex: Duplex[pb.CheckTransactionsRequest, pb.CheckTransactionsResponse] | None = None
        self._task: asyncio.Task[None] | None = None
        # By transaction: the latest check number that the listener is processing, and unconfirmed answers.
        self._asking: dict[str, int] = {}
        self._unconfirmed: dict[str, pb.CheckAnswer] = {}
        self._calls: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Starts connecting, in the background."""
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    async def wait_until_registered(self) -> None:
        """Waits until a broker has registered this producer for checks.

        Raises:
            RequestRefused: A broker refused to register it.
        """
        await self._answered.wait()
        if self._refusal is not None:
            raise self._refusal

    async def close(self, grace: float) -> None:
        """Waits for running listener calls and their answers, then ends the stream.

        Args:
            grace: Seconds for that, at most.
        """
        self._closing.set()
        if self._task is None:
            return
        if self._calls:
            await asyncio.wait(self._calls, timeout=grace)
        for call in self._calls:
            call.cancel()
        if self._duplex is not None:
            self._duplex.half_close()
            await asyncio.wait([self._task], timeout=min(grace, _LAST_WORDS))
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        reconnect = Reconnect(self._link)
        while not self._closing.is_set():
            broker = reconnect.broker()
            ended_with: BaseException | None = None
            try:
                await self._serve(broker)
                if not self._closing.is_set():
                    text = "broker %s ended the check stream; going on elsewhere"
                    _log.info(text, broker.endpoint, extra=self._about)
            except grpc.aio.AioRpcError as error:
                # For ever, whatever the status: an operator can repair the broker, but not this process.
                ended_with = error
                self._note(error, broker)
            except Exception as error:
                ended_with = error
                text = "the check stream of group %s failed in this process; opening another"
                _log.exception(text, self._group, extra=self._about)
            finally:
                if self._refusal is None:
                    self._answered.clear()
            wait = reconnect.ended(broker, ended_with)
            await self._pause(wait if self._refusal is None else _WAIT_AFTER_REFUSAL)

    def _note(self, error: grpc.aio.AioRpcError, broker: Broker) -> None:
        # A stream lasts longer than a token: it is opened again with the one that counts by then.
        registered = self._answered.is_set() and self._refusal is None
        expired = error.code() is grpc.StatusCode.UNAUTHENTICATED and registered
        if error.code() not in HOPELESS or expired:
            self._refusal = None
            _log.warning(
                "check stream of group %s to %s: %s: %s; trying again",
                self._group,
                broker.endpoint,
                error.code().name,
                error.details(),
                extra=self._about,
            )
            return
        plain = as_halfmq_error(error)
        self._refusal = RequestRefused(
            f"broker {broker.endpoint} refuses to ask producer {self._client_id!r} of group {self._group!r} about "
            f"transactions ({plain}); correct the group, the client id or the broker's address: until then this "
            "producer answers no checks",
            code=plain.code,
            reason=plain.reason,
            field=plain.field,
        )
        _log.error("%s; trying again every %g s", self._refusal, _WAIT_AFTER_REFUSAL, extra=self._about)
        self._answered.set()

    async def _pause(self, seconds: float) -> None:
        if seconds > 0:
            try:
                await asyncio.wait_for(self._closing.wait(), seconds)
            except TimeoutError:
                return

    async def _serve(self, broker: Broker) -> None:
        self._duplex = Duplex(broker.transactions.CheckTransactions())
        introduction = pb.RegisterProducer(producer_group=self._group, client_id=self._client_id)
        introduction.heartbeat.FromTimedelta(timedelta(seconds=HEARTBEAT))
        self._duplex.put(pb.CheckTransactionsRequest(register=introduction))
        for answer in self._unconfirmed.values():
            self._duplex.put(pb.CheckTransactionsRequest(answer=answer))
        try:
            await self._duplex.run(self._on_response)
        finally:
            self._duplex = None

    def _on_response(self, response: pb.CheckTransactionsResponse) -> None:
        event = response.WhichOneof("event")
        if event == "registered":
            text = "registered for checks of group %s at broker %s"
            _log.info(text, self._group, response.registered.broker_id, extra=self._about)
            if self._duplex is not None:
                self._duplex.expect_heartbeats(agreed=response.registered.HasField("heartbeat"))
            self._refusal = None
            self._answered.set()
        elif event == "check":
            self._on_check(response.check)
        elif event == "answered":
            result = response.answered.result
            self._unconfirmed.pop(result.transaction_id, None)
            if result.HasField("error"):
                _log.warning(
                    "the broker refused the answer to a check of transaction %s: %s %s",
                    result.transaction_id,
                    result.error.reason,
                    result.error.message,
                    extra={**self._about, "transaction_id": result.transaction_id},
                )

    def _on_check(self, check: pb.TransactionCheck) -> None:
        if self._closing.is_set():
            return
        repeated = check.transaction_id in self._asking
        self._asking[check.transaction_id] = check.check_number
        if not repeated:
            call = asyncio.create_task(self._answer(check))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)

    async def _answer(self, check: pb.TransactionCheck) -> None:
        transaction_id = check.transaction_id
        tracing, traceparent = current_tracing(), ""
        try:
            if tracing is None:
                state, reason = await self._listener.check(_half_messages(check))
            else:
                about = check.messages, transaction_id, check.check_number, self._client_id
                with tracing.checking(*about) as traceparent:
                    state, reason = await self._listener.check(_half_messages(check))
            answer = pb.CheckAnswer(
                transaction_id=transaction_id,
                # A check repeated while the listener was running has the same answer.
                check_number=self._asking[transaction_id],
                verdict=_VERDICTS[state],
                reason=reason,
                traceparent=traceparent,
            )
        finally:
            del self._asking[transaction_id]
        # The broker confirms verdicts only; a lost UNKNOWN has the same effect as one that arrives.
        if state is not LocalTransactionState.UNKNOWN:
            self._unconfirmed[transaction_id] = answer
        if self._duplex is not None:
            self._duplex.put(pb.CheckTransactionsRequest(answer=answer))


def _half_messages(check: pb.TransactionCheck) -> HalfMessages:
    return HalfMessages(
        transaction_id=check.transaction_id,
        messages=tuple(from_wire(message) for message in check.messages),
        check_number=check.check_number,
        max_checks=check.max_checks,
        prepared_at=check.prepared_at.ToDatetime(UTC) if check.HasField("prepared_at") else None,
    )
