"""Connected clients: their settings, and their telemetry streams.

A client holds a telemetry stream to every broker of its routes. On it the client sends its settings and gets the
broker's; producers get checks of transactions that began on their topics. A restarted broker has no record of its
clients, and they may not reopen their streams for minutes: so their other calls register them, too.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from broker.domain.group import ConsumerGroup
from broker.domain.ids import format_id
from broker.domain.limits import MAX_TOPICS_OF_CLIENT, check_group_name, check_topic_name
from broker.errors import NotFound, StorageUnavailable
from broker.ports.connections import MOST_NAMES, ClientKind
from broker.rocketmq import settings
from broker.rocketmq.access import judge_settings, may_be_asked, may_send
from broker.rocketmq.codes import OK, BadRequest, status_of
from broker.rocketmq.messages import half_message
from broker.rocketmq.names import name_of, producer_group_of
from broker.rocketmq.protocol import Code, definition_pb2, service_pb2
from broker.services.connections import Connected, Figures
from broker.services.producing.check_sessions import CheckSession
from broker.services.rights import CALLER
from broker.wire.clients import place_of, printable
from broker.wire.stream_writer import StreamWriter
from broker.wire.times import micros

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable

    from broker.rocketmq.calls import Caller
    from broker.services.catalog import Catalog
    from broker.services.connections import Connections
    from broker.services.producing.check_sessions import CheckSessions

_Type, _Language = definition_pb2.ClientType, definition_pb2.Language
_CONSUMERS = {
    _Type.PUSH_CONSUMER,
    _Type.SIMPLE_CONSUMER,
    _Type.PULL_CONSUMER,
}
SILENCE, AFTER_STREAM = 45.0, 15.0
"""Seconds without calls after which a client counts as disconnected: if it had no stream, and if it had one.

Most call every 10 seconds, some every 30. A process that is killed ends its stream.
"""
_TAKE_IN_LITTLE = {_Language.NODE_JS, _Language.DOT_NET, _Language.RUST}
_SAID_AGAIN_AFTER = 1.5
_INTRODUCTION = 2.0
_NODE = "HTTP"
"""The language of Node's client in the headers of its calls."""
_MOST_CLIENTS = 100_000
_MOST_CHECKS = 10_000


@dataclass(slots=True, eq=False)
class Client:
    """A client, by its id.

    Attributes:
        topics: topics of its transactions, and whether it is known to have some there.
        streams: its telemetry streams at this broker.
        heard_at: time of its last call.
        kind, language: type and language, from its settings or its calls; 0 until known.
        told: set when it has sent its settings.
        polling: its polling timeout in microseconds, from its settings.
    """

    topics: dict[str, bool] = field(default_factory=dict)
    streams: set[CheckSession] = field(default_factory=set)
    heard_at: float = 0.0
    kind: int = 0
    language: int = 0
    told: asyncio.Event = field(default_factory=asyncio.Event)
    polling: int = 0

    @property
    def pushes(self) -> bool:
        """Whether it is a push consumer, which nacks every message that it does not ack."""
        return bool(self.kind == _Type.PUSH_CONSUMER)

    @property
    def reads_seconds_as_milliseconds(self) -> bool:
        """Whether its delays are ignored: Node's client takes seconds for milliseconds."""
        return bool(self.language == _Language.NODE_JS)

    @property
    def takes_in_little(self) -> bool:
        """Whether it fails a whole call if an answer exceeds 4 MiB."""
        return self.language in _TAKE_IN_LITTLE


class Clients:
    """The clients that are connected, or were recently."""

    def __init__(self, catalog: Catalog, sessions: CheckSessions, connections: Connections, max_body: int) -> None:
        """Takes the catalog, the check sessions, the list of who is connected, and the largest body."""
        self._connections = connections
        self._catalog = catalog
        self._sessions = sessions
        self._max_body = max_body
        self._clients: OrderedDict[str, Client] = OrderedDict()
        self._checks: OrderedDict[bytes, tuple[int, str]] = OrderedDict()
        self._writers: set[StreamWriter[Any]] = set()
        self._draining = False
        self.on_leave: Callable[[str], None] = lambda _: None

    def drain(self) -> None:
        """Ends all streams."""
        self._draining = True
        for writer in self._writers:
            writer.close()

    def heard(self, caller: Caller, kind: int = 0) -> Client:
        """Records a call of a client; `kind`: its type, if the call implies it."""
        client = self._clients.get(caller.client_id)
        if client is None:
            client = self._clients[caller.client_id] = Client()
            if len(self._clients) > _MOST_CLIENTS:
                del self._clients[next(name for name, each in self._clients.items() if not each.streams)]
        client.heard_at = time.monotonic()
        client.kind = kind or client.kind
        self._clients.move_to_end(caller.client_id)
        return client

    async def introduced(self, caller: Caller) -> Client:
        """Records a call of a client whose meaning depends on the client's settings.

        After a restart of the broker, some calls arrive before the client's new stream. For Node's client this matters:
        see `reads_seconds_as_milliseconds`. It opens one within about a second.
        """
        client = self.heard(caller)
        if caller.language == _NODE and not client.language:
            with suppress(TimeoutError):
                async with asyncio.timeout(_INTRODUCTION):
                    await client.told.wait()
        return client

    def alive(self, client_id: str) -> bool:
        """Whether a client has a stream here, or made a call recently."""
        client = self._clients.get(client_id)
        return client is not None and bool(client.streams or time.monotonic() - client.heard_at < SILENCE)

    def left(self, caller: Caller) -> None:
        """Handles the termination of a client."""
        client = self._clients.pop(caller.client_id, None)
        if client is not None:
            for session in client.streams:
                self._sessions.end(session)
        self.on_leave(caller.client_id)

    async def has_transactions(self, caller: Caller, topic: str) -> None:
        """Records that a client sends half messages to a topic, so it can answer checks of them."""
        if caller.client_id:
            await self._catalog.topic(topic)
            await self._take_part(self.heard(caller), topic, surely=True)

    async def _may_have_transactions(self, client: Client, topic: str) -> None:
        check_topic_name(topic)
        with suppress(NotFound):
            await self._catalog.topic(topic)
            await self._take_part(client, topic, surely=False)

    async def _take_part(self, client: Client, topic: str, *, surely: bool) -> None:
        if not may_be_asked(topic):
            return
        if client.topics.get(topic) in {surely, True}:
            return
        group_id = await self._group_id(topic)
        client.topics[topic] = surely or client.topics.get(topic, False)
        for session in client.streams:
            self._sessions.admit(session, group_id, surely=surely)

    async def _group_id(self, topic: str) -> int:
        return await self._catalog.producer_group_id(producer_group_of(topic))

    def asked(self, transaction_id: bytes, number: int, caller: Caller) -> None:
        """Records that a check with this number was sent to a client."""
        self._checks[transaction_id] = number, caller.client_id
        self._checks.move_to_end(transaction_id)
        while len(self._checks) > _MOST_CHECKS:
            self._checks.popitem(last=False)

    def open_check(self, transaction_id: bytes, caller: Caller) -> int | None:
        """The number of the last unanswered check of a transaction that this broker sent to a client."""
        number, asked = self._checks.get(transaction_id, (None, ""))
        return number if asked == caller.client_id else None

    def heard_of(self, transaction_id: bytes, caller: Caller) -> None:
        """Records an answer of a client, UNKNOWN included: it does answer checks."""
        client = self._clients.get(caller.client_id)
        for session in client.streams if client is not None else ():
            session.answered(transaction_id)

    def answered(self, transaction_id: bytes) -> None:
        """Removes the pending checks of a transaction that this broker sent."""
        self._checks.pop(transaction_id, None)

    async def telemetry(self, requests: AsyncIterator[Any], caller: Caller, peer: str) -> AsyncGenerator[Any, None]:
        """Serves a client's stream; `peer`: gRPC's name of where it comes from."""
        client = self.heard(caller.named())
        session = CheckSession(caller.client_id)
        connected = Connected(
            None,
            caller.client_id,
            place_of(peer),
            "",
            CALLER.get().name,
            figures=lambda: Figures(delivered=session.sent, held=session.unanswered),
        )
        writer: StreamWriter[Any] = StreamWriter()
        self._writers.add(writer)
        if self._draining:
            writer.close()
        client.streams.add(session)
        try:
            for topic, surely in list(client.topics.items()):
                self._sessions.admit(session, await self._group_id(topic), surely=surely)
            with self._connections.open(connected):
                async for command in writer.run(
                    self._take(requests, client, caller, writer, connected),
                    self._send_checks(session, caller, writer),
                ):
                    yield command
        finally:
            self._writers.discard(writer)
            client.streams.discard(session)
            client.heard_at = time.monotonic() - SILENCE + AFTER_STREAM
            self._sessions.end(session)

    async def _take(
        self,
        requests: AsyncIterator[Any],
        client: Client,
        caller: Caller,
        writer: StreamWriter[Any],
        connected: Connected,
    ) -> None:
        first = True
        async for request in requests:
            self.heard(caller)
            if request.WhichOneof("command") != "settings":
                continue  # Answers to commands that this broker does not send.
            try:
                judge_settings(request.settings, caller)
                agreed = await self._agree(request.settings, client, caller)
                _describe(connected, request.settings, caller)
            except StorageUnavailable as error:
                # Other errors in settings end the stream. This one is transient, and clients that lose their streams
                # may be without one for minutes.
                await writer.write(service_pb2.TelemetryCommand(status=status_of(error)))
                continue
            command = service_pb2.TelemetryCommand(status=OK, settings=agreed)
            await writer.write(command)
            if first and client.language == _Language.NODE_JS:
                # It waits for settings after all routes are known, and may have received these too early.
                await asyncio.sleep(_SAID_AGAIN_AFTER)
                await writer.write(command)
            first = False

    async def _agree(self, told: Any, client: Client, caller: Caller) -> Any:
        client.kind, client.language = told.client_type, told.user_agent.language
        client.told.set()
        kind = told.WhichOneof("pub_sub")
        if kind == "publishing":
            if len(told.publishing.topics) > MAX_TOPICS_OF_CLIENT:
                raise BadRequest(
                    f"{len(told.publishing.topics)} topics; {MAX_TOPICS_OF_CLIENT} are allowed.",
                    Code.BAD_REQUEST,
                    "publishing.topics",
                )
            for topic in told.publishing.topics:
                await self._may_have_transactions(client, name_of(topic, caller.namespace))
            return settings.for_producer(told, self._max_body)
        if kind != "subscription":
            raise BadRequest("The settings have neither publishing nor subscription.", Code.BAD_REQUEST, "settings")
        if told.client_type not in _CONSUMERS:
            raise BadRequest(
                f"There is no consumer of the type {told.client_type} here; use a push consumer or a simple consumer.",
                Code.UNRECOGNIZED_CLIENT_TYPE,
                "settings.client_type",
            )
        group = name_of(told.subscription.group, caller.namespace)
        check_group_name(group, "consumer_group")
        client.polling = micros(told.subscription.long_polling_timeout, "settings.subscription.long_polling_timeout")
        return settings.for_consumer(told, await self._group(group, client))

    async def _group(self, name: str, client: Client) -> ConsumerGroup:
        """A consumer's group; a missing one is treated as an ordinary one, as by RocketMQ's proxies.

        Receiving for it is refused, naming the group. Without settings Go's client never starts, and Java's does not
        report the reason; Node's does.

        Raises:
            NotFound: there is none, and the client can report it.
        """
        try:
            return await self._catalog.group(name)
        except NotFound:
            if client.language == _Language.NODE_JS:
                raise
            return ConsumerGroup(0, name, 0)

    async def _send_checks(self, session: CheckSession, caller: Caller, writer: StreamWriter[Any]) -> None:
        async for check in session.outgoing():
            # The rules may have changed since the client told what it sends to.
            if not all(may_send(half.topic) and may_be_asked(half.topic) for half in check.halves):
                continue
            self.asked(check.transaction_id, check.check_number, caller)
            command = service_pb2.RecoverOrphanedTransactionCommand(
                message=half_message(check, caller.namespace), transaction_id=format_id(check.transaction_id)
            )
            await writer.write(service_pb2.TelemetryCommand(recover_orphaned_transaction_command=command))


def _describe(connected: Connected, told: Any, caller: Caller) -> None:
    """Takes over for operators what a client says of itself."""
    agent = told.user_agent
    # A later client may be of a language that has no name here.
    named = _Language.DESCRIPTOR.values_by_number.get(agent.language)
    language = named.name.lower() if named is not None else f"language-{agent.language}"
    connected.library = printable(f"rocketmq-{language}/{agent.version}")
    if told.WhichOneof("pub_sub") == "publishing":
        topics = [name_of(topic, caller.namespace) for topic in told.publishing.topics[:MOST_NAMES]]
        connected.kind, connected.topics = ClientKind.PRODUCER, topics
        connected.groups = [producer_group_of(topic) for topic in topics]
        return
    connected.kind = ClientKind.CONSUMER
    connected.groups = [name_of(told.subscription.group, caller.namespace)]
    entries = told.subscription.subscriptions[:MOST_NAMES]
    connected.topics = [name_of(entry.topic, caller.namespace) for entry in entries]
