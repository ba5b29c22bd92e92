"""The engine of both consumers: one stream, received messages, and pending requests."""

from __future__ import annotations

import asyncio
import itertools
import logging
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

from client_core.connection import Duplex, Reconnect
from client_core.connection.statuses import HOPELESS, as_halfmq_error
from client_core.errors import HalfmqError
from consumer_sdk.errors import BrokerUnavailable, ClientClosed, ConsumerError, SubscriptionRefused
from consumer_sdk.fifo import FifoLeases
from consumer_sdk.inbox import Inbox, body_size
from consumer_sdk.leases import LeaseKeeper, lease_of, seconds_of
from consumer_sdk.settling import Settling
from halfmq.v1 import consumer_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from client_core.connection import Broker, BrokerLink
    from consumer_sdk.receipts import Nack, ReceiptResults
    from consumer_sdk.settings import ConsumerSettings

__all__ = ["Subscription"]

_log = logging.getLogger("halfmq.consumer")

TakenT = TypeVar("TakenT")

_HANDLES_PER_RETURN = 1024
# Seconds that a broker gets to end the stream after it was half-closed.
_LAST_WORDS = 2.0


class Subscription:
    """Keeps one Consume stream to one of the brokers open until it is closed.

    Leases are stored in the database, not in the stream: delivered messages stay leased when a stream breaks, and
    unanswered requests are resent on the next one.
    """

    def __init__(self, link: BrokerLink, settings: ConsumerSettings) -> None:
        """Connects nothing yet."""
        self._link = link
        self.settings = settings
        ids = itertools.count(1).__next__
        # What log lines are about.
        self.about = {"group": settings.group, "client_id": settings.client_id}
        self._keeper = LeaseKeeper(self._put, ids, self._on_lost, settings.longest_hold, self.about)
        chunks = settings.credit_chunk, settings.credit_chunk_bytes
        self.inbox = Inbox(*chunks, self._on_taken, self._keeper.in_doubt, self._on_doubt)
        self._fifo = FifoLeases()
        keeper = self._keeper
        self._settling = Settling(
            self._put, ids, self._fifo, keeper.release, self._withhold, keeper.sure_until, link.retry, self.about
        )
        self._duplex: Duplex[pb.ConsumeRequest, pb.ConsumeResponse] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._extender: asyncio.Task[None] | None = None
        self._ack_timer: asyncio.TimerHandle | None = None
        self._subscribed = asyncio.Event()
        self._subscribed_before = False
        # By the stream that is open, or was last.
        self._served = False
        self._failure: ConsumerError | None = None
        self._never_reached: BrokerUnavailable | None = None
        self.stopped = False
        """Whether delivery to the application has stopped."""
        self.failed_with = ""
        """The exception that ended the application's work; messages it had taken by then count as tried."""
        self._closed = False
        self._finished = False
        self._lease_duration = 0.0
        # Credits on the stream that no message has used up yet: messages, and bytes of bodies.
        self._credits = 0
        self._byte_credits = 0
        self._has_granted_bytes = False

    def start(self) -> None:
        """Starts connecting, in the background.

        Raises:
            ClientClosed: The consumer is closed.
            RuntimeError: This is not the event loop of the first call.
        """
        self._link.bind()
        if self._closed:
            msg = "this consumer is closed; make a new one"
            raise ClientClosed(msg)
        if self._task is None:
            self._loop = asyncio.get_running_loop()
            self._task = self._background(self._run())
            self._start_ack_timer()

    async def wait_until_subscribed(self) -> None:
        """Waits until a broker has confirmed the subscription.

        Raises:
            SubscriptionRefused: A broker refused it.
            ConsumerError: What runs in the background has failed.
        """
        await self._subscribed.wait()
        if self._failure is not None:
            raise self._failure

    async def receive(self, limit: int) -> list[pb.Delivery]:
        """Waits for messages; returns none only after the end.

        Raises:
            SubscriptionRefused: The broker refuses the subscription.
            ConsumerError: What runs in the background has failed.
        """
        return await self._take(lambda: self.inbox.take(limit)) or []

    async def receive_in_turn(self) -> pb.Delivery | None:
        """Waits for a message whose message group has no other one being handled; see Inbox.take_in_turn.

        Returns:
            The message; None after the end.

        Raises:
            SubscriptionRefused: The broker refuses the subscription.
            ConsumerError: What runs in the background has failed.
        """
        return await self._take(self.inbox.take_in_turn)

    def complain_if_never_reached(self) -> None:
        """Raises if no broker has been reached yet; a later outage is waited for silently.

        Raises:
            BrokerUnavailable: no broker has accepted the subscription so far.
        """
        if self._never_reached is not None:
            raise self._never_reached

    async def _take(self, take: Callable[[], TakenT]) -> TakenT | None:
        while not self.stopped:
            taken = take()
            if taken:
                return taken
            if self._failure is not None:
                raise self._failure
            await self.inbox.wait()
        return None

    def settle(self, handles: Sequence[str], nack: Nack | None, *, wait: bool) -> list[asyncio.Future[ReceiptResults]]:
        """Acks (``nack=None``) or nacks; see Settling.submit."""
        self.start()
        if self._failure is not None:
            raise self._failure
        return self._settling.submit(handles, nack, wait=wait)

    def settled_elsewhere(self, handles: Sequence[str]) -> None:
        """Takes note of messages that another call acknowledged."""
        if not self._closed:
            self._settling.settled_elsewhere(handles)

    def break_off(self, handles: Sequence[str]) -> None:
        """Stops delivery of the message groups that are returned with a nack of these; from any thread."""
        self._settling.break_off(handles)

    def stop(self) -> None:
        """Stops delivery to the application, and ends all waits for messages; from any thread."""
        self.stopped = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.inbox.wake)

    async def close(self, grace: float) -> None:
        """Returns all unsettled messages, then ends the stream.

        The stream is half-closed first, so that the broker does not redeliver messages that were just returned.

        Args:
            grace: Seconds for pending acks and nacks to be confirmed, and again for returned messages.
        """
        self.stop()
        if self._closed:
            return
        self._link.bind()
        self._closed = True
        if self._task is None:
            return
        try:
            async with asyncio.timeout(grace):
                # After a failure there is no stream that could confirm anything.
                if self._failure is None:
                    await self._settling.drain()
        except TimeoutError:
            text = "closing with acks or nacks that no broker has confirmed; their messages come again"
            _log.warning(text, extra=self.about)
        self._finished = True
        if self._duplex is not None:
            self._duplex.half_close()
            await asyncio.wait([self._task], timeout=_LAST_WORDS)
        for task in (self._task, self._extender):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        self._stop_ack_timer()
        try:
            async with asyncio.timeout(grace):
                await self._give_back()
        except (TimeoutError, HalfmqError) as error:
            text = "messages could not be given back (%r); they come again when their leases end"
            _log.warning(text, error, extra=self.about)
        self.inbox.clear()
        self._settling.fail_waiters(_closed_error())

    async def _give_back(self) -> None:
        # Handled, and possibly gathered for a stream that has failed: these must not come again.
        acked = self._settling.unawaited_acks()
        await self._settle_by_calls(
            acked, lambda broker: broker.consumer.Ack, lambda part: pb.AckRequest(receipt_handles=part)
        )
        settled = set(acked)
        held = [handle for handle in self._keeper.held() if handle not in settled]
        waiting = self.inbox.handles() if self.failed_with else set(held)
        await self._return([handle for handle in held if handle not in waiting], self.failed_with, untried=False)
        untried = self._fifo.heads(handle for handle in held if handle in waiting)
        await self._return(untried, "the consumer was closed", untried=True)

    async def _return(self, handles: list[str], reason: str, *, untried: bool) -> None:
        await self._settle_by_calls(
            handles,
            lambda broker: broker.consumer.Nack,
            lambda part: pb.NackRequest(receipt_handles=part, reason=reason, untried=untried),
        )

    async def _settle_by_calls(
        self, handles: list[str], method: Callable[[Broker], Any], request: Callable[[list[str]], Any]
    ) -> None:
        for start in range(0, len(handles), _HANDLES_PER_RETURN):
            response = await self._link.call(method, request(handles[start : start + _HANDLES_PER_RETURN]))
            self._keeper.release([result.receipt_handle for result in response.results])

    async def _run(self) -> None:
        reconnect = Reconnect(self._link)
        while not self._finished:
            broker = reconnect.broker()
            ended_with: BaseException | None = None
            try:
                await self._serve(broker)
                if not self._finished:
                    text = "broker %s ended the consume stream; going on elsewhere"
                    _log.info(text, broker.endpoint, extra=self.about)
            except grpc.aio.AioRpcError as error:
                ended_with = error
                # A stream lasts longer than a token: it is opened again with the one that counts by then.
                expired = error.code() is grpc.StatusCode.UNAUTHENTICATED and self._served
                if error.code() in HOPELESS and not expired:
                    self._fail(self._refused(error))
                    return
                _log.warning(
                    "consume stream of group %s to %s: %s: %s; trying again",
                    self.settings.group,
                    broker.endpoint,
                    error.code().name,
                    error.details(),
                    extra=self.about,
                )
                if not self._subscribed_before:
                    self._never_reached = BrokerUnavailable(
                        f"no broker has taken the subscription of group {self.settings.group} so far; the last one, "
                        f"{broker.endpoint}, said {error.code().name}: {error.details()}; check the endpoints",
                        code=error.code(),
                    )
            if not self._finished:
                await asyncio.sleep(reconnect.ended(broker, ended_with))

    async def _serve(self, broker: Broker) -> None:
        duplex = Duplex(broker.consumer.Consume())
        duplex.put(pb.ConsumeRequest(subscribe=self.settings.subscribe(again=self._subscribed_before)))
        self._duplex = duplex
        self._served = False
        # Before any credit: held messages must not be delivered to this consumer again.
        self._keeper.extend(self._lease_duration)
        self._credits = self._byte_credits = 0
        self._has_granted_bytes = False
        self._grant()
        self._settling.resend()
        try:
            await duplex.run(self._on_response)
        finally:
            self._duplex = None
            self._subscribed.clear()
            self._start_ack_timer()

    def _on_response(self, response: pb.ConsumeResponse) -> None:
        event = response.WhichOneof("event")
        if event == "deliveries":
            arrived = response.deliveries.deliveries
            self._credits -= len(arrived)
            self._byte_credits -= sum(map(body_size, arrived))
            breaks = self._fifo.breaks
            deliveries = self._fifo.admit(arrived)
            self._keeper.hold(deliveries, self._lease_duration)
            self.inbox.put(deliveries)
            if self._fifo.breaks != breaks:
                # Another thread returned a message in between.
                self.inbox.drop(self._fifo.is_broken)
            if len(deliveries) < len(arrived):
                self._grant()
        elif event == "outcome":
            outcome = response.outcome
            if not self._settling.on_outcome(outcome):
                self._keeper.on_outcome(outcome)
                # Messages in doubt are confirmed, or lost.
                self.inbox.wake()
        elif event == "subscribed":
            self._on_subscribed(response.subscribed)

    def _on_subscribed(self, subscribed: pb.Subscribed) -> None:
        _log.info("group %s reads through broker %s", self.settings.group, subscribed.broker_id, extra=self.about)
        self._stop_ack_timer()
        if self._duplex is not None:
            self._duplex.expect_heartbeats(agreed=subscribed.HasField("heartbeat"))
        if self._extender is not None:
            self._extender.cancel()
        self._lease_duration = seconds_of(subscribed.lease_duration)
        if subscribed.HasField("time"):
            self._keeper.database_clock.heard(seconds_of(subscribed.time))
        self._extender = self._background(self._keep_leases())
        self._subscribed_before = self._served = True
        self._never_reached = None
        self._subscribed.set()

    async def _keep_leases(self) -> None:
        while self._lease_duration > 0:
            await asyncio.sleep(self._lease_duration / 3)
            self._keeper.extend(self._lease_duration)

    def _start_ack_timer(self) -> None:
        """Fails waiters for an outcome when there is no stream for longer than the retry deadline."""
        # A failed attempt to connect does not restart the clock.
        if self._ack_timer is None:
            self._ack_timer = asyncio.get_running_loop().call_later(self._link.retry.deadline, self._on_ack_timeout)

    def _stop_ack_timer(self) -> None:
        if self._ack_timer is not None:
            self._ack_timer.cancel()
            self._ack_timer = None

    def _on_ack_timeout(self) -> None:
        self._ack_timer = None
        msg = (
            f"no broker took acks for {self._link.retry.deadline} s; they are sent when one is back, but their "
            "messages may be delivered again; check the endpoints and the brokers"
        )
        self._settling.fail_waiters(BrokerUnavailable(msg, code=grpc.StatusCode.UNAVAILABLE))
        self._start_ack_timer()

    def _background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        task.add_done_callback(self._on_ended)
        return task

    def _on_ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._finished:
            failure = ConsumerError(
                f"the consumer of group {self.settings.group} failed in the background: {error!r}; make a new one, "
                "and report it as a defect of the SDK"
            )
            failure.__cause__ = error
            self._fail(failure)

    def _refused(self, error: grpc.aio.AioRpcError) -> SubscriptionRefused:
        plain = as_halfmq_error(error)
        missing = error.code() is grpc.StatusCode.NOT_FOUND
        remedy = "; create what is missing or correct the names" if missing else ""
        return SubscriptionRefused(
            f"the subscription of group {self.settings.group} to {', '.join(self.settings.topics)} was refused "
            f"({error.code().name}): {error.details()}{remedy}",
            code=plain.code,
            reason=plain.reason,
            field=plain.field,
        )

    def _fail(self, failure: ConsumerError) -> None:
        """Fails all waiters; no more messages arrive."""
        self._failure = failure
        _log.error("%s", failure, exc_info=failure.__cause__, extra=self.about)
        self._settling.fail_waiters(failure)
        self._subscribed.set()
        self.inbox.wake()

    def _put(self, request: pb.ConsumeRequest) -> None:
        if self._duplex is not None:
            self._duplex.put(request)

    def _grant(self) -> None:
        # Waiting messages and outstanding credits together never exceed the prefetch.
        room = max(0, self.settings.prefetch - len(self.inbox) - self._credits)
        room_bytes = max(0, self.settings.prefetch_bytes - self.inbox.size - self._byte_credits)
        # A broker takes a stream that never granted bytes for one without that limit: no messages alone, then.
        if not room_bytes and not self._has_granted_bytes:
            return
        if (room or room_bytes) and self._duplex is not None and not self.stopped:
            self._credits += room
            self._byte_credits += room_bytes
            self._has_granted_bytes = True
            self._put(pb.ConsumeRequest(credits=pb.GrantCredits(messages=room, bytes=room_bytes)))

    def _on_taken(self) -> None:
        # Called in the thread that took them.
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._grant)

    def _on_doubt(self) -> None:
        # Called in the thread that found it. Without a stream the leases are extended when there is one again.
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._keeper.ask)

    def _withhold(self, broken_off: list[str]) -> None:
        # Called in the thread that returned a message.
        if self._loop is not None:
            self.inbox.drop(self._fifo.is_broken)
            self._loop.call_soon_threadsafe(self._keeper.release, broken_off)

    def _on_lost(self, leases: set[str]) -> None:
        self._fifo.lost(leases)
        self.inbox.drop(lambda delivery: lease_of(delivery.receipt_handle) in leases)


def _closed_error() -> ClientClosed:
    return ClientClosed("the consumer was closed before a broker confirmed this; its message may be delivered again")
