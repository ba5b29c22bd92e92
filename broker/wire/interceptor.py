"""Interceptor of every call: limits concurrency, converts errors to statuses, and logs unknown ones."""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
import time
import uuid
from collections.abc import Sequence
from contextlib import aclosing, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import grpc

from broker.errors import BrokerError, ClientOverloaded, InvalidArgument, release
from broker.ports.observer import NO_OBSERVER, Observer
from broker.wire.budget import Budget, Share
from broker.wire.client_limits import NO_BOUNDS, Client, ClientBounds, ClientLimits
from broker.wire.concurrency_limit import ConcurrencyLimit
from broker.wire.decoding import decoded, requests
from broker.wire.request_ids import ids_of_request
from broker.wire.request_receiver import RequestReceiver
from broker.wire.response_budget import ResponseBudget
from broker.wire.status import Refusal, refusal_of
from broker.wire.throttled_log import ThrottledLog
from broker.wire.turns import NO_TURN

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from contextlib import AbstractContextManager

logger = logging.getLogger("halfmq.api")
_of_clients = ThrottledLog(logger)

# Health checks and admin calls are accepted under overload, too. The answers of look-ups may be large: they have a
# separate limit.
BOUNDED = (
    "/halfmq.v1.TransactionService/",
    "/halfmq.v1.ProducerService/",
    "/halfmq.v1.ConsumerService/",
    "/halfmq.v1.SinkService/",
)
WAITING = frozenset({"/halfmq.v1.ConsumerService/Pull"})
"""Calls that wait for something most of the time, and take no turns."""
LOOK_UPS = "/halfmq.v1.QueryService/"
MOST_LOOK_UPS = 64
OPERATORS = "/halfmq.v1.AdminService/"
MORE_STREAMS = 100
HEALTH = "/grpc.health.v1.Health/"
MOST_WATCHES = 1000
FEWEST_OF_CONNECTION = 1000
"""A client that has just connected does not know the limit of its connection yet, and would lose what is beyond it."""
MOST_WRITING = 1000
"""Streams at a time that are refused, and still write their first request."""
LOOK_AGAIN = 1.0
"""Seconds between two looks whether the caller of a stream is still known."""
STILL_WRITING = 0.1
"""Seconds for a client to write its first request, before its stream is refused."""
LARGEST_REQUEST = 32 * 1024 * 1024
MOST_REQUEST_BYTES = 512 * 1024 * 1024


_UNBOUNDED = ConcurrencyLimit("calls", sys.maxsize)
Headers = Sequence[tuple[str, str | bytes]]
_GIVEN_UP = (asyncio.CancelledError, GeneratorExit)
"""How a call ends that its client does not wait for any more."""
_CODE_NAMES = {code.value[0]: code.name for code in grpc.StatusCode}


class Gate(Protocol):
    """Lets calls in, or refuses them."""

    async def enter(self, method: str, context: Any, headers: Headers) -> str:
        """Finds out who makes a call; raises BrokerError. Returns the name, which may be empty."""
        ...

    def enter_again(self, method: str) -> None:
        """Lets a call in that has waited since; raises BrokerError."""
        ...

    async def look_again(self, method: str, context: Any) -> None:
        """Finds out whether the caller of a stream is still known; raises BrokerError."""
        ...

    def judge(self, method: str, request: Any) -> Callable[[], None]:
        """Judges a request, or the first one of a stream; returns how to judge it again. Both raise BrokerError."""
        ...

    def stream(self) -> AbstractContextManager[None]:
        """Counts a stream of the caller while it lasts; raises BrokerError."""
        ...


class Recorder(Protocol):
    """Records calls before they are made."""

    def records(self, method: str) -> bool:
        """Whether calls of a method are recorded."""
        ...

    async def changing(self, method: str, request: Any, context: Any) -> Any:
        """Records a call; raises BrokerError. Returns the record."""
        ...

    def failed(self, record: Any, error: BaseException) -> None:
        """Notes that a recorded call failed, or that nobody waits for it any more."""
        ...


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Turns exceptions of servicers into gRPC statuses, and refuses calls when too many are in flight.

    It reads the requests itself, because gRPC receives and decodes a request before any code can refuse it. On the wire
    a unary request is the same as a stream of one, so methods are served as if they took streams.

    Attributes:
        calls, streams: counts in flight, also for servicers that report errors in another way.
        clients: what each client has under way, also for servicers that find out by themselves who calls.
        most_of_connection: calls and streams of one connection that are taken before any is refused; more wait at the
            client, which costs nothing here.
        budget: bytes of the requests in flight.
        answers: bytes of unread answers; the same limit as for requests.
        known_to: by the names of services that find out by themselves who calls: whether they know the caller of a
            call. Of others no request is read; the service gets None in its place, and refuses the call in its own way.
    """

    def __init__(
        self,
        *,
        max_calls: int,
        max_streams: int,
        max_request_bytes: int = MOST_REQUEST_BYTES,
        observer: Observer = NO_OBSERVER,
        gate: Gate | None = None,
        recorder: Recorder | None = None,
        client_bounds: ClientBounds = NO_BOUNDS,
    ) -> None:
        """Takes the limits of concurrent calls, streams and bytes of requests, the observer, the gate and the recorder.

        Without a gate every call is let in, and without a recorder none is recorded. The bounds are those of one
        client.
        """
        bounds = ClientBounds.within(max_calls, max_streams, max_request_bytes, client_bounds)
        self.most_of_connection = max(FEWEST_OF_CONNECTION, 2 * (bounds.calls + bounds.streams))
        self.clients = ClientLimits(bounds)
        self._gate = gate
        self._recorder = recorder
        self._observer = observer
        self.calls = ConcurrencyLimit("calls", max_calls)
        self.streams = ConcurrencyLimit("streams", max_streams)
        self.budget = Budget(max_request_bytes)
        self.responses = ResponseBudget(max_request_bytes)
        self.known_to: dict[str, Callable[[Any], bool]] = {}
        self._writing = ConcurrencyLimit("refused streams", MOST_WRITING)
        self._receiver = RequestReceiver(self.budget, LARGEST_REQUEST)
        self._look_ups = ConcurrencyLimit("look-ups", MOST_LOOK_UPS)
        # Of nobody who has to be known: they have a limit of their own.
        self._watches = ConcurrencyLimit("health watches", MOST_WATCHES)
        # Reflection, and RocketMQ's protocol, which counts its own streams, too, and refuses them first.
        self._others = ConcurrencyLimit("streams of other services", 2 * max_streams + MORE_STREAMS)

    def in_use(self) -> list[tuple[str, float, float]]:
        """What is in use and how much may be, by name; may be asked in any thread."""
        counted = [
            ("calls", self.calls),
            ("streams", self.streams),
            ("look_ups", self._look_ups),
            ("health_watches", self._watches),
            ("other_streams", self._others),
        ]
        return [
            *[(name, limit.under_way, limit.most) for name, limit in counted],
            ("request_bytes", self.budget.taken, self.budget.most),
            ("response_bytes", self.responses.taken, self.responses.most),
        ]

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Wraps the method of the call."""
        handler: Any = await continuation(handler_call_details)
        if handler is None:
            return None
        method, headers = handler_call_details.method, handler_call_details.invocation_metadata or ()
        calls, streams = self._limits_of(method)
        if handler.unary_unary:
            return grpc.stream_unary_rpc_method_handler(
                self._unary(handler.unary_unary, handler.request_deserializer, method, headers, calls),
                None,
                handler.response_serializer,
            )
        if handler.unary_stream:
            wrap = self._stream if inspect.isasyncgenfunction(handler.unary_stream) else self._unary
            # A method that is not a generator writes to the context itself, as grpc's health service does.
            return grpc.stream_stream_rpc_method_handler(
                wrap(handler.unary_stream, handler.request_deserializer, method, headers, streams),
                None,
                handler.response_serializer,
            )
        if handler.stream_stream:
            return grpc.stream_stream_rpc_method_handler(
                self._stream(handler.stream_stream, handler.request_deserializer, method, headers, streams, many=True),
                None,
                _or_ready(handler.response_serializer),
            )
        # There is no method of another form, and none gets past what is done here.
        raise NotImplementedError(method)

    def _limits_of(self, method: str) -> tuple[ConcurrencyLimit, ConcurrencyLimit]:
        """The limits of a method, if it is a call, and if it is a stream."""
        if method.startswith(LOOK_UPS):
            return self._look_ups, self._look_ups
        if method.startswith(HEALTH):
            return _UNBOUNDED, self._watches
        if not method.startswith(BOUNDED):
            return _UNBOUNDED, _UNBOUNDED if method.startswith(OPERATORS) else self._others
        return self.calls, self.streams

    @contextmanager
    def admitted(self, method: str, name: str, peer: str, *, is_stream: bool = False) -> Iterator[None]:
        """Counts a call that did not come by gRPC, such as the console's, by the same limits; raises Overloaded."""
        calls, streams = self._limits_of(method)
        if is_stream:
            with self._stream_of_client(method, name, peer), streams, self._counted():
                yield
        else:
            with self._of_client(method, calls, name, peer), calls:
                yield

    def _unary(
        self,
        inner: Callable[[Any, Any], Awaitable[Any]],
        deserialize: Any,
        method: str,
        headers: Headers,
        limit: ConcurrencyLimit,
    ) -> Any:
        recorder = self._recorder_of(method)
        takes_turns = limit is self.calls and method not in WAITING

        async def call(_: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            self._observe(method, context)
            record = request = None
            with Share(self.budget) as share:
                try:
                    # Excess calls are refused before their request is read, and so are those of nobody who is known.
                    limit.check()
                    name = "" if self._gate is None else await self._gate.enter(method, context, headers)
                    with self._of_client(method, limit, name, context.peer()) as client:
                        share.count_for(client.budget)
                        # Those that wait are under way, too.
                        with limit, self.clients.turn(client) if takes_turns else NO_TURN as turn:
                            if turn.waits:
                                await turn.begin()
                                self._enter_again(method)
                            if self._knows(method, context):
                                request = await self._one(context, deserialize, share)
                                if self._gate is not None:
                                    self._gate.judge(method, request)
                            if recorder is not None:
                                record = await recorder.changing(method, request, context)
                            response = await inner(request, context)
                            # From here on it is made, whatever becomes of the answer.
                            record = None
                    if response is not None and (give_back := self.responses.take(context, response)):
                        context.add_done_callback(give_back)  # type: ignore[arg-type]
                    return response
                except (BrokerError, Exception, *_GIVEN_UP) as error:
                    if record is not None:
                        self._failed(record, error)
                    if isinstance(error, _GIVEN_UP):
                        raise
                    refusal, pause = _told(method, error, request)
            await self._refuse(context, refusal, pause)
            return None

        return call

    def _stream(
        self,
        inner: Callable[[Any, Any], Any],
        deserialize: Any,
        method: str,
        headers: Headers,
        limit: ConcurrencyLimit,
        *,
        many: bool = False,
    ) -> Any:
        recorder = None if many else self._recorder_of(method)

        async def call(_: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
            self._observe(method, context)
            record = request = None
            permits: list[Callable[[], None]] = []
            # Whether its first request may still be on its way.
            writes_yet = many
            look_at = time.monotonic() + LOOK_AGAIN
            with Share(self.budget) as share:
                try:
                    if many and limit.full:
                        writes_yet = False
                        await self._let_write(context)
                    if not many:
                        limit.check()
                    name = "" if self._gate is None else await self._gate.enter(method, context, headers)
                    with self._stream_of_client(method, name, context.peer()) as client:
                        share.count_for(client.budget)
                        if many:
                            request = self._requests(method, context, limit, deserialize, client, permits)
                        else:
                            request = await self._request(method, context, deserialize, share, permits)
                        if recorder is not None:
                            record = await recorder.changing(method, request, context)
                        with limit, self._counted():
                            writes_yet = False
                            async with aclosing(inner(request, context)) as responses:
                                async for response in responses:
                                    if permits:
                                        look_at = await self._look_again(method, context, permits, look_at)
                                    give_back = self.responses.take(context, response)
                                    try:
                                        yield response
                                    finally:
                                        if give_back:
                                            give_back(None)
                    return
                except (BrokerError, Exception, *_GIVEN_UP) as error:
                    if record is not None:
                        self._failed(record, error)
                    if isinstance(error, _GIVEN_UP):
                        raise
                    refusal, pause = _told(method, error, request)
            await self._refuse(context, refusal, pause, writes_yet=writes_yet)

        return call

    async def _refuse(self, context: Any, refusal: Refusal | None, pause: float, *, writes_yet: bool = False) -> None:
        """Tells a client why its call was refused, unless it is gone."""
        if refusal is None:
            return
        if writes_yet:
            await self._let_write(context)
        if pause:
            await self.clients.wait(pause)
        refusal.tell(context)

    def _of_client(self, method: str, limit: ConcurrencyLimit, name: str, peer: str) -> AbstractContextManager[Client]:
        if limit is self._watches:
            return self.clients.watch(name, peer)
        return self.clients.call(name, peer, counted=limit is not _UNBOUNDED and not self._counts_itself(method))

    def _stream_of_client(self, method: str, name: str, peer: str) -> AbstractContextManager[Client]:
        if self._counts_itself(method):
            return self.clients.call(name, peer, counted=False)
        return self.clients.stream(name, peer)

    def _counts_itself(self, method: str) -> bool:
        """Whether a service finds out by itself who calls, and counts what they have under way then."""
        return _service_of(method) in self.known_to

    def _recorder_of(self, method: str) -> Recorder | None:
        return self._recorder if self._recorder is not None and self._recorder.records(method) else None

    def _enter_again(self, method: str) -> None:
        if self._gate is not None:
            self._gate.enter_again(method)

    def _failed(self, record: Any, error: BaseException) -> None:
        if self._recorder is not None:
            self._recorder.failed(record, error)

    def _counted(self) -> AbstractContextManager[None]:
        return nullcontext() if self._gate is None else self._gate.stream()

    async def _look_again(
        self, method: str, context: Any, permits: Sequence[Callable[[], None]], look_at: float
    ) -> float:
        """A stream lasts: what it was let in for, or by, may not count any more; returns when to look at the latter."""
        for still_permitted in permits:
            still_permitted()
        if time.monotonic() < look_at:
            return look_at
        if self._gate is not None:
            await self._gate.look_again(method, context)
        return time.monotonic() + LOOK_AGAIN

    async def _let_write(self, context: Any) -> None:
        """Takes the first request of a stream that is refused: a client whose write fails may not get the reason."""
        if not self._writing.full:
            with self._writing:
                await self._receiver.next(context, counted=False)
                await asyncio.sleep(STILL_WRITING)

    async def _request(
        self, method: str, context: Any, deserialize: Any, share: Share, permits: list[Callable[[], None]]
    ) -> Any:
        """The request of a call; adds how to judge it again to `permits`."""
        if not self._knows(method, context):
            return None
        request = await self._one(context, deserialize, share)
        if self._gate is not None:
            permits.append(self._gate.judge(method, request))
        return request

    def _requests(
        self,
        method: str,
        context: Any,
        limit: ConcurrencyLimit,
        deserialize: Any,
        client: Client,
        permits: list[Callable[[], None]],
    ) -> AsyncIterator[Any]:
        """The requests of a call, as they come; adds how to judge the first one again to `permits`."""
        receiver = None if limit in {_UNBOUNDED, self._others} else self._receiver
        coming = requests(context, receiver, deserialize, self.budget, client, LARGEST_REQUEST)
        return coming if self._gate is None else self._judged(coming, method, context, permits)

    async def _judged(
        self, requests: AsyncIterator[Any], method: str, context: Any, permits: list[Callable[[], None]]
    ) -> AsyncIterator[Any]:
        """The requests of a stream, of which the first one is judged; how to judge it again is added to `permits`.

        What it was let in by is looked at again before a later one counts, unless that was done a moment ago.
        """
        assert self._gate is not None  # noqa: S101 - there is nothing to judge by
        looked_at = time.monotonic()
        async for request in requests:
            if not permits:
                permits.append(self._gate.judge(method, request))
            else:
                permits[0]()  # The rules may have changed since.
                if time.monotonic() - looked_at >= LOOK_AGAIN:
                    await self._gate.look_again(method, context)
                    looked_at = time.monotonic()
            yield request
            del request

    def _knows(self, method: str, context: Any) -> bool:
        """Whether the caller is known, as far as the service finds that out by itself."""
        knows = self.known_to.get(_service_of(method))
        return knows is None or knows(context)

    def _observe(self, method: str, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        if self._observer is not NO_OBSERVER:
            context.add_done_callback(partial(self._ended, method, time.monotonic()))  # type: ignore[arg-type]

    def _ended(self, method: str, began: float, context: Any) -> None:
        code = grpc.StatusCode.CANCELLED.name if context.cancelled() else _code_name(context.code())
        self._observer.call_ended(method, code, time.monotonic() - began)

    async def _one(self, context: Any, deserialize: Any, share: Share) -> Any:
        raw = await self._receiver.next(context)
        if raw is None:
            raise InvalidArgument("The call ended without a request.", field="request")
        return await decoded(raw, deserialize, share, LARGEST_REQUEST)


def _service_of(method: str) -> str:
    return method[1:].partition("/")[0]


def _code_name(code: Any) -> str:
    """The name of a context's code: a number, one of StatusCode, or None for OK."""
    if isinstance(code, grpc.StatusCode):
        return code.name
    return _CODE_NAMES.get(code or 0, grpc.StatusCode.UNKNOWN.name)


def _or_ready(serialize: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    """A serializer that passes serialized messages through, so that the message itself need not be kept."""
    return lambda response: response if isinstance(response, bytes) else serialize(response)


def _told(method: str, error: BaseException, request: Any) -> tuple[Refusal | None, float]:
    """The client's error, and the seconds until it is told; None if it has disconnected, or has got it already."""
    if isinstance(error, BrokerError):
        refusal = refusal_of(error)
        release(error)
        return refusal, error.pause if isinstance(error, ClientOverloaded) else 0.0
    if isinstance(error, grpc.aio.AbortError):
        # The call keeps it, and raises it once more when its servicer returns.
        release(error)
        return None, 0.0
    if isinstance(error, grpc.aio.InternalError):
        # gRPC's error for a stream that broke during a write: the client has disconnected.
        _of_clients.info("the client of %s is gone: %s", method, error)
        release(error)
        return None, 0.0
    incident = uuid.uuid4().hex[:12]
    about = {**ids_of_request(request), "incident": incident}
    logger.error("unexpected error in %s, incident %s", method, incident, exc_info=error, extra=about)
    release(error)
    text = f"Internal error; the broker's log tells more, incident {incident}."
    return Refusal(grpc.StatusCode.INTERNAL, text), 0.0
