"""RocketMQ's protocol for tests: a client on the generated stubs, which may say whatever an official one may."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

import grpc

from broker.rocketmq.protocol import Code, definition_pb2, service_pb2, service_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

PATIENCE = 30.0
TIMES = {"first_check": 0.2, "check_interval": 0.2, "max_checks": 15, "rocketmq_min_invisible": 0.1}
"""Of the broker that tests share: short, so that check after check can be waited for."""

Type, ClientType, Language = definition_pb2.MessageType, definition_pb2.ClientType, definition_pb2.Language
Resolution, Source = definition_pb2.TransactionResolution, definition_pb2.TransactionSource
Encoding, Scheme, FilterType = definition_pb2.Encoding, definition_pb2.AddressScheme, definition_pb2.FilterType

_OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


def unique(prefix: str) -> str:
    """A name that nobody else has."""
    return f"{prefix}-{uuid.uuid4().hex[:10]}"


def new_message_id() -> str:
    """A name of a message as official clients make them."""
    return f"01{uuid.uuid4().hex.upper()}"


def resource(name: str, namespace: str = "") -> Any:
    """A topic or a group."""
    return definition_pb2.Resource(resource_namespace=namespace, name=name)


def endpoints(*addresses: str, scheme: int = Scheme.IPv4) -> Any:
    """Addresses such as `127.0.0.1:8081`."""
    found = definition_pb2.Endpoints(scheme=scheme)
    for address in addresses:
        host, _, port = address.rpartition(":")
        found.addresses.add(host=host, port=int(port))
    return found


def message(
    topic: str,
    body: bytes | str = b"hello",
    *,
    kind: int = Type.NORMAL,
    message_id: str | None = None,
    namespace: str = "",
    properties: Mapping[str, str] | None = None,
    after: float | None = None,
    recovery: float | None = None,
    **system: Any,
) -> Any:
    """A message as clients send it.

    Args:
        topic: where to.
        body: what is in it.
        kind: its type.
        message_id: its name; None: a new one.
        namespace: of the topic.
        properties: of the application.
        after: seconds from now until it is to be delivered.
        recovery: seconds that its transaction wants to be left alone.
        system: further system properties.
    """
    content = body.encode() if isinstance(body, str) else body
    made = definition_pb2.Message(topic=resource(topic, namespace), body=content, user_properties=properties or {})
    own = made.system_properties
    own.message_type = kind
    own.message_id = new_message_id() if message_id is None else message_id
    own.body_encoding = Encoding.IDENTITY
    own.born_host = "host"
    own.born_timestamp.GetCurrentTime()
    own.MergeFrom(definition_pb2.SystemProperties(**system))
    if after is not None:
        own.delivery_timestamp.FromMicroseconds(own.born_timestamp.ToMicroseconds() + int(after * 1e6))
    if recovery is not None:
        own.orphaned_transaction_recovery_duration.FromMicroseconds(int(recovery * 1e6))
    return made


def half(topic: str, body: bytes | str = b"half", **rest: Any) -> Any:
    """A half message."""
    return message(topic, body, kind=Type.TRANSACTION, **rest)


@dataclass
class Received:
    """What a call of ReceiveMessage or PullMessage answered.

    Attributes:
        order: the kinds of its items, in their order.
    """

    code: int = 0
    text: str = ""
    messages: list[Any] = field(default_factory=list)
    order: list[str] = field(default_factory=list)
    next_offset: int = -1

    def add(self, item: Any) -> None:
        """Takes the next item."""
        kind = item.WhichOneof("content")
        self.order.append(kind)
        if kind == "status":
            self.code, self.text = item.status.code, item.status.message
        elif kind == "message":
            self.messages.append(item.message)
        elif kind == "next_offset":
            self.next_offset = item.next_offset

    @property
    def bodies(self) -> list[str]:
        """The bodies of its messages."""
        return [each.body.decode() for each in self.messages]

    @property
    def handles(self) -> list[str]:
        """The receipt handles of its messages."""
        return [each.system_properties.receipt_handle for each in self.messages]


class RawClient:
    """One client of a broker, under a name that stays: its calls, and its telemetry streams."""

    def __init__(
        self,
        endpoint: str,
        client_id: str | None = None,
        *,
        namespace: str = "",
        keys: tuple[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        reads_ahead: bool = True,
        authority: bytes | None = None,
        identity: tuple[bytes, bytes] | None = None,
    ) -> None:
        """Takes where the broker is, its name (None: one of its own; empty: it does not say), and how it signs.

        `reads_ahead`: whether the connection takes more than 64 KiB that nobody reads. `authority`: the certificate
        that it trusts; None: it speaks without TLS. `identity`: the key and the certificate that it shows.
        """
        self.endpoint = endpoint
        self.client_id = unique("client") if client_id is None else client_id
        self.namespace = namespace
        self.keys = keys
        self._headers = dict(headers or {})
        window = [] if reads_ahead else [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65_536)]
        options = [*_OPTIONS, *window]
        if authority is None:
            self._channel = grpc.aio.insecure_channel(endpoint, options=options)
        else:
            credentials = grpc.ssl_channel_credentials(authority, *(identity or ()))
            self._channel = grpc.aio.secure_channel(endpoint, credentials, options=options)
        self.stub = service_pb2_grpc.MessagingServiceStub(self._channel)
        self._streams: list[Telemetry] = []

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The headers of a call."""
        headers = {"x-mq-language": "JAVA", "x-mq-client-version": "5.0.8", "x-mq-protocol": "v2"}
        headers["x-mq-namespace"] = self.namespace
        if self.client_id:
            headers["x-mq-client-id"] = self.client_id
        if self.keys is not None:
            headers["x-mq-date-time"] = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
            headers["authorization"] = signature(*self.keys, headers["x-mq-date-time"])
        return tuple({**headers, **self._headers}.items())

    async def call(self, method: str, request: Any, seconds: float = PATIENCE) -> Any:
        """Makes a call; whatever it answers has a code."""
        answer = await getattr(self.stub, method)(request, metadata=self.metadata(), timeout=seconds)
        assert answer.status.code != Code.CODE_UNSPECIFIED, answer
        return answer

    def open(self, method: str, request: Any, seconds: float | None = PATIENCE) -> Any:
        """Begins a call that answers with a stream."""
        return getattr(self.stub, method)(request, metadata=self.metadata(), timeout=seconds)

    async def collect(self, method: str, request: Any, seconds: float = PATIENCE) -> Received:
        """Makes a call that answers with a stream, and reads it whole; it has a code."""
        received = Received()
        async for item in self.open(method, request, seconds):
            received.add(item)
        assert received.code != Code.CODE_UNSPECIFIED, received
        return received

    async def send(self, *messages: Any) -> Any:
        """SendMessage."""
        return await self.call("SendMessage", service_pb2.SendMessageRequest(messages=messages))

    async def send_one(self, topic: str, body: bytes | str = b"hello", **rest: Any) -> Any:
        """Sends a message, which must work; its entry in the answer."""
        answer = await self.send(message(topic, body, namespace=self.namespace, **rest))
        assert answer.status.code == Code.OK, answer
        return answer.entries[0]

    async def prepare(self, topic: str, body: bytes | str = b"half", **rest: Any) -> str:
        """Sends a half message, which must work; the transaction's id."""
        entry = await self.send_one(topic, body, kind=Type.TRANSACTION, **rest)
        return str(entry.transaction_id)

    async def end(
        self, transaction_id: str, resolution: int = Resolution.COMMIT, source: int = Source.SOURCE_CLIENT
    ) -> int:
        """EndTransaction; its code."""
        request = service_pb2.EndTransactionRequest(transaction_id=transaction_id, resolution=resolution, source=source)
        return int((await self.call("EndTransaction", request)).status.code)

    def receive_request(
        self,
        group: str,
        topic: str,
        *,
        batch: int = 32,
        invisible: float | None = 30.0,
        wait: float | None = 0.0,
        auto_renew: bool = False,
        tags: str = "*",
        sql: str = "",
        attempt: str = "",
        queue: int = 0,
    ) -> Any:
        """What ReceiveMessage is asked; None: it does not say."""
        request = service_pb2.ReceiveMessageRequest(
            group=resource(group, self.namespace),
            message_queue=definition_pb2.MessageQueue(topic=resource(topic, self.namespace), id=queue),
            filter_expression=definition_pb2.FilterExpression(
                type=FilterType.SQL if sql else FilterType.TAG, expression=sql or tags
            ),
            batch_size=batch,
            auto_renew=auto_renew,
        )
        if invisible is not None and not auto_renew:
            request.invisible_duration.FromMicroseconds(int(invisible * 1e6))
        if wait is not None:
            request.long_polling_timeout.FromMicroseconds(int(wait * 1e6))
        if attempt:
            request.attempt_id = attempt
        return request

    async def receive(self, group: str, topic: str, *, seconds: float = PATIENCE, **rest: Any) -> Received:
        """ReceiveMessage, as `receive_request` says."""
        return await self.collect("ReceiveMessage", self.receive_request(group, topic, **rest), seconds)

    async def receive_some(self, group: str, topic: str, **rest: Any) -> Received:
        """Receives at least one message, however long that takes."""
        received = await self.receive(group, topic, **{"wait": 20.0, **rest})
        assert received.code == Code.OK, received
        assert received.messages
        return received

    async def ack(self, group: str, topic: str, *handles: str) -> Any:
        """AckMessage."""
        request = service_pb2.AckMessageRequest(
            group=resource(group, self.namespace), topic=resource(topic, self.namespace)
        )
        for handle in handles:
            request.entries.add(message_id="some", receipt_handle=handle)
        return await self.call("AckMessage", request)

    async def change(self, group: str, topic: str, handle: str, seconds: float) -> Any:
        """ChangeInvisibleDuration."""
        request = service_pb2.ChangeInvisibleDurationRequest(
            group=resource(group, self.namespace), topic=resource(topic, self.namespace), receipt_handle=handle
        )
        request.invisible_duration.FromMicroseconds(int(seconds * 1e6))
        return await self.call("ChangeInvisibleDuration", request)

    async def give_up(self, group: str, topic: str, handle: str, attempt: int = 3) -> int:
        """ForwardMessageToDeadLetterQueue; its code."""
        request = service_pb2.ForwardMessageToDeadLetterQueueRequest(
            group=resource(group, self.namespace),
            topic=resource(topic, self.namespace),
            receipt_handle=handle,
            delivery_attempt=attempt,
            max_delivery_attempts=attempt,
        )
        return int((await self.call("ForwardMessageToDeadLetterQueue", request)).status.code)

    async def heartbeat(self, kind: int = ClientType.PRODUCER, group: str = "") -> int:
        """Heartbeat; its code."""
        request = service_pb2.HeartbeatRequest(client_type=kind)
        if group:
            request.group.CopyFrom(resource(group, self.namespace))
        return int((await self.call("Heartbeat", request)).status.code)

    async def terminate(self, group: str = "") -> int:
        """NotifyClientTermination; its code."""
        request = service_pb2.NotifyClientTerminationRequest()
        if group:
            request.group.CopyFrom(resource(group, self.namespace))
        return int((await self.call("NotifyClientTermination", request)).status.code)

    def telemetry(self) -> Telemetry:
        """Opens a telemetry stream; nothing is said on it yet."""
        self._streams.append(Telemetry(self.stub.Telemetry(metadata=self.metadata())))
        return self._streams[-1]

    async def as_producer(self, *topics: str, language: int = Language.JAVA) -> Telemetry:
        """A stream on which it told the settings of a producer, and got its answer."""
        stream = self.telemetry()
        await stream.agree(self.producer_settings(*topics, language=language))
        return stream

    async def as_consumer(
        self, group: str, *topics: str, kind: int = ClientType.PUSH_CONSUMER, language: int = Language.JAVA
    ) -> Telemetry:
        """A stream on which it told the settings of a consumer, and got its answer."""
        stream = self.telemetry()
        await stream.agree(self.consumer_settings(group, *topics, kind=kind, language=language))
        return stream

    def producer_settings(self, *topics: str, language: int = Language.JAVA) -> Any:
        """The settings of a producer."""
        told = definition_pb2.Settings(client_type=ClientType.PRODUCER)
        told.user_agent.language = language
        told.publishing.SetInParent()
        told.publishing.topics.extend([resource(topic, self.namespace) for topic in topics])
        return told

    def consumer_settings(
        self, group: str, *topics: str, kind: int = ClientType.PUSH_CONSUMER, language: int = Language.JAVA
    ) -> Any:
        """The settings of a consumer."""
        told = definition_pb2.Settings(client_type=kind)
        told.user_agent.language = language
        told.subscription.group.CopyFrom(resource(group, self.namespace))
        for topic in topics:
            told.subscription.subscriptions.add(
                topic=resource(topic, self.namespace),
                expression=definition_pb2.FilterExpression(type=FilterType.TAG, expression="*"),
            )
        return told

    async def close(self) -> None:
        """Hangs up."""
        for stream in self._streams:
            await stream.hang_up()
        await self._channel.close()

    async def __aenter__(self) -> Self:
        """Is connected when it calls."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Hangs up."""
        await self.close()


class Telemetry:
    """A telemetry stream."""

    def __init__(self, call: Any) -> None:
        """Takes the call, which has begun."""
        self.call = call
        self._commands: asyncio.Queue[Any] = asyncio.Queue()
        # A task of its own: whoever gives up waiting for a command would otherwise cancel the stream.
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError):
            async for command in self.call:
                self._commands.put_nowait(command)
        self._commands.put_nowait(None)

    async def tell(self, settings: Any) -> None:
        """Tells settings."""
        await self.call.write(service_pb2.TelemetryCommand(settings=settings))

    async def next(self, seconds: float = PATIENCE) -> Any:
        """The next command; None at the end of the stream."""
        async with asyncio.timeout(seconds):
            command = await self._commands.get()
        if command is None:
            self._commands.put_nowait(None)
        return command

    @property
    def silent(self) -> bool:
        """Whether no command has come that was not read."""
        return self._commands.empty()

    async def agree(self, settings: Any) -> Any:
        """Tells settings, which must be taken; those that come back."""
        await self.tell(settings)
        # What the client is known for may be asked about before.
        earlier = []
        command = await self.next()
        while command is not None and command.HasField("recover_orphaned_transaction_command"):
            earlier.append(command)
            command = await self.next()
        for each in earlier:
            self._commands.put_nowait(each)
        assert command.status.code == Code.OK, command
        assert command.HasField("settings"), command
        return command.settings

    async def refused(self, settings: Any) -> int:
        """Tells settings, which must be refused; the code."""
        await self.tell(settings)
        command = await self.next()
        assert command.WhichOneof("command") is None, command
        return int(command.status.code)

    async def next_check(self) -> Any:
        """The next question about a transaction."""
        while True:
            command = await self.next()
            assert command is not None, "the stream has ended"
            if command.HasField("recover_orphaned_transaction_command"):
                return command.recover_orphaned_transaction_command

    async def check_of(self, transaction_id: str) -> Any:
        """The next question about this transaction."""
        while (check := await self.next_check()).transaction_id != transaction_id:
            pass
        return check

    async def ended(self) -> grpc.StatusCode:
        """Waits until the broker ends the stream; how."""
        while await self.next() is not None:
            pass
        code: grpc.StatusCode = await self.call.code()
        return code

    async def hang_up(self) -> None:
        """Ends it, as a client that dies does."""
        self.call.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)


def signature(key: str, secret: str, date_time: str, *, scope: str = "", upper: bool = False) -> str:
    """The header `authorization` of a call; official clients differ in what stands behind the key, and in the case."""
    signed = hmac.new(secret.encode(), date_time.encode(), hashlib.sha1).hexdigest()
    signed = signed.upper() if upper else signed
    return f"MQv2-HMAC-SHA1 Credential={key}{scope}, SignedHeaders=x-mq-date-time, Signature={signed}"
