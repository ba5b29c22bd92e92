"""What each call needs: the table of all RPCs, and the gate that every call goes through.

An RPC without an entry is refused. Where a request has many items with outcomes of their own, its servicer judges them
one by one, by `Caller.may`; the entry says so.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import MutableSequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from google.protobuf.message import Message

from broker.domain.access import Action, Kind, Need
from broker.domain.limits import MAX_TOPICS_OF_CLIENT, Limits
from broker.errors import BrokerError, Denied, StorageUnavailable, Unauthenticated
from broker.ports.audit import AuditOutcome, AuditRecord
from broker.services.auditing import CHANGE, Change
from broker.services.judges import LONGEST_NAME
from broker.services.rights import CALLER, NOBODY, Caller, action_name, resource_name
from broker.wire.credentials.authentication import address_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from broker.services.auditing import Audit
    from broker.services.rights import Rights
    from broker.wire.credentials.authentication import Credentials


@dataclass(frozen=True, slots=True)
class Entry:
    """What a call needs.

    Attributes:
        needs: from its request, or from the first one of a stream: all of them are needed.
        items: its servicer judges more, item by item, or once it knows what an id stands for.
        open: it needs no principal.
        changes: it changes what operators set, and is recorded before it is made: the resource, if `needs` tells none.
        sends: how many messages it sends, for the rates of tenants.
        waits: what it sends waits for a verdict.
    """

    needs: Callable[[Any], Iterable[Need]] = lambda _: ()
    items: bool = False
    open: bool = False
    changes: Callable[[Any], str] | None = None
    sends: Callable[[Any], int] | None = None
    waits: bool = False


def _topic(action: Action) -> Callable[[Any], Iterable[Need]]:
    return lambda request: [Need(action, Kind.TOPIC, request.topic)]


def _group(action: Action) -> Callable[[Any], Iterable[Need]]:
    return lambda request: [Need(action, Kind.GROUP, request.group)]


def _subscription(request: Any) -> list[Need]:
    return [
        Need(Action.SUB, Kind.GROUP, request.consumer_group),
        # More of them are refused by the call itself.
        *(Need(Action.SUB, Kind.TOPIC, topic) for topic in dict.fromkeys(request.topics[:MAX_TOPICS_OF_CLIENT])),
    ]


def _offsets(request: Any) -> list[Need]:
    needs = [Need(Action.SUB, Kind.TOPIC, request.topic)]
    return [*needs, Need(Action.SUB, Kind.GROUP, request.consumer_group)] if request.consumer_group else needs


def _topics_of(messages: Iterable[Any]) -> list[Need]:
    # As above: more than these are too many for any call.
    topics = dict.fromkeys(message.topic for message in islice(messages, MOST_MESSAGES))
    return [Need(Action.PUB, Kind.TOPIC, topic) for topic in topics]


def _epoch(request: Any) -> list[Need]:
    return [Need(Action.PUB, Kind.SINK, request.epoch.sink)]


def _commit_epoch(request: Any) -> list[Need]:
    return [*_epoch(request), *_topics_of(message for own in request.transactions for message in own.messages)]


def _transactions(request: Any) -> list[Need]:
    needs = [Need(Action.LIST, Kind.GROUP, request.producer_group)] if request.producer_group else []
    return [*needs, Need(Action.LIST, Kind.TOPIC, request.topic)] if request.topic else needs


def _resolving(request: Any) -> list[Need]:
    needs = [Need(Action.OPERATE, Kind.GROUP, request.producer_group)] if request.producer_group else []
    return [*needs, Need(Action.OPERATE | Action.LIST, Kind.TOPIC, request.topic)] if request.topic else needs


def _clients(request: Any) -> list[Need]:
    return [Need(Action.LIST, Kind.GROUP, request.group)] if request.group else []


def _seek(request: Any) -> list[Need]:
    return [Need(Action.OPERATE, Kind.GROUP, request.group), Need(Action.SUB | Action.GET, Kind.TOPIC, request.topic)]


def _redrive(request: Any) -> list[Need]:
    # To which topics copies are appended is judged letter by letter.
    return [Need(Action.OPERATE, Kind.GROUP, request.group)]


def _set_filter(request: Any) -> list[Need]:
    topic = request.filter.topic
    return [Need(Action.OPERATE, Kind.GROUP, request.group), Need(Action.SUB | Action.GET, Kind.TOPIC, topic)]


def _access(action: Action, name: str = "access") -> Callable[[Any], Iterable[Need]]:
    return lambda _: [Need(action, Kind.CLUSTER, name)]


def _changing(needs: Callable[[Any], Iterable[Need]]) -> Entry:
    """A call that is recorded, as one about what it needs first."""
    return Entry(needs, changes=lambda request: resource_name(next(iter(needs(request)))))


def _granting(request: Any) -> str:
    return f"access {request.rule.subject}"


def _sends(request: Any) -> int:
    return len(request.messages)


def _prepares(request: Any) -> int:
    return sum(len(each.messages) for each in request.transactions)


MOST_MESSAGES = Limits().max_items
LONGEST_DETAIL = 15_000
LONGEST_SHOWN, MOST_SHOWN, DEEPEST_SHOWN = 500, 100, 4
"""Characters of a request that are recorded; of one text in it; items of a list; messages within messages."""
_V1, _ITEMS, _OPEN = "/halfmq.v1.", Entry(items=True), Entry(open=True)

CALLS: Mapping[str, Entry] = {
    f"{_V1}TransactionService/Prepare": Entry(
        lambda request: [Need(Action.PUB, Kind.GROUP, request.producer_group)], items=True, sends=_prepares, waits=True
    ),
    f"{_V1}TransactionService/Commit": _ITEMS,
    f"{_V1}TransactionService/Rollback": _ITEMS,
    f"{_V1}TransactionService/CheckTransactions": Entry(
        lambda first: [Need(Action.CHECK, Kind.GROUP, first.register.producer_group)]
    ),
    f"{_V1}TransactionService/GetTransaction": _ITEMS,
    f"{_V1}ProducerService/Send": Entry(items=True, sends=_sends),
    f"{_V1}ProducerService/SendAndAck": Entry(lambda request: _topics_of(request.messages), items=True, sends=_sends),
    f"{_V1}ProducerService/Recall": _ITEMS,
    f"{_V1}ConsumerService/Consume": Entry(lambda first: _subscription(first.subscribe), items=True),
    f"{_V1}ConsumerService/Pull": Entry(_subscription),
    f"{_V1}ConsumerService/Ack": _ITEMS,
    f"{_V1}ConsumerService/Nack": _ITEMS,
    f"{_V1}ConsumerService/ExtendLease": _ITEMS,
    f"{_V1}ConsumerService/ReadQueue": Entry(_topic(Action.SUB)),
    f"{_V1}ConsumerService/MeasureQueue": Entry(_topic(Action.SUB)),
    f"{_V1}ConsumerService/QueueOffsets": Entry(_offsets),
    f"{_V1}ConsumerService/CommitOffsets": Entry(_offsets),
    f"{_V1}AdminService/CreateTopic": _changing(lambda r: [Need(Action.CREATE, Kind.TOPIC, r.topic.name)]),
    f"{_V1}AdminService/ListTopics": _ITEMS,
    f"{_V1}AdminService/DescribeTopic": Entry(_topic(Action.GET)),
    f"{_V1}AdminService/UpdateTopic": _changing(_topic(Action.UPDATE)),
    f"{_V1}AdminService/DeleteTopic": _changing(_topic(Action.DELETE)),
    f"{_V1}AdminService/CreateGroup": _changing(lambda r: [Need(Action.CREATE, Kind.GROUP, r.group.name)]),
    f"{_V1}AdminService/ListGroups": _ITEMS,
    f"{_V1}AdminService/DescribeGroup": Entry(_group(Action.GET)),
    f"{_V1}AdminService/UpdateGroup": _changing(_group(Action.UPDATE)),
    f"{_V1}AdminService/PauseGroup": _changing(_group(Action.OPERATE)),
    f"{_V1}AdminService/SeekGroup": _changing(_seek),
    f"{_V1}AdminService/SetFilter": _changing(_set_filter),
    f"{_V1}AdminService/ListDeadLetters": Entry(_group(Action.GET)),
    f"{_V1}AdminService/RedriveDeadLetters": _changing(_redrive),
    f"{_V1}AdminService/PurgeDeadLetters": Entry(
        _group(Action.OPERATE), items=True, changes=lambda request: f"group {request.group}"
    ),
    f"{_V1}AdminService/ListGroupLag": Entry(
        lambda request: [Need(Action.LIST, Kind.TOPIC, request.topic)] if request.topic else [], items=True
    ),
    f"{_V1}AdminService/DeleteGroup": _changing(_group(Action.DELETE)),
    f"{_V1}AdminService/ListTransactions": Entry(_transactions, items=True),
    f"{_V1}AdminService/ResolveTransaction": Entry(
        items=True, changes=lambda request: f"transaction {request.transaction_id}"
    ),
    f"{_V1}AdminService/ResolveTransactions": Entry(
        _resolving,
        items=True,
        changes=lambda request: f"transactions of {request.producer_group or 'all groups'}",
    ),
    f"{_V1}AdminService/GetOverview": Entry(lambda _: [Need(Action.LIST, Kind.CLUSTER, "overview")], items=True),
    f"{_V1}AdminService/ListBrokers": Entry(lambda _: [Need(Action.LIST, Kind.CLUSTER, "brokers")]),
    f"{_V1}AdminService/ListClients": Entry(_clients, items=True),
    f"{_V1}AdminService/GrantAccess": Entry(_access(Action.UPDATE), items=True, changes=_granting),
    f"{_V1}AdminService/RevokeAccess": Entry(_access(Action.UPDATE), items=True, changes=lambda _: "access"),
    f"{_V1}AdminService/ListAccessRules": Entry(_access(Action.LIST)),
    f"{_V1}AdminService/SetQuota": Entry(
        _access(Action.UPDATE), changes=lambda request: f"tenant {request.quota.tenant}"
    ),
    f"{_V1}AdminService/ListQuotas": Entry(_access(Action.LIST)),
    f"{_V1}AdminService/ListAuditRecords": Entry(_access(Action.LIST, "audit")),
    f"{_V1}QueryService/GetMessage": _ITEMS,
    f"{_V1}QueryService/FindMessages": Entry(_topic(Action.GET)),
    f"{_V1}QueryService/GetTimeline": _ITEMS,
    f"{_V1}SinkService/PrepareEpoch": Entry(lambda r: [*_epoch(r), *_topics_of(r.messages)], sends=_sends, waits=True),
    f"{_V1}SinkService/CommitEpoch": Entry(_commit_epoch, sends=_prepares),
    f"{_V1}SinkService/AbortEpoch": Entry(_epoch),
    f"{_V1}SinkService/GetSink": Entry(lambda request: [Need(Action.GET, Kind.SINK, request.sink)]),
    f"{_V1}SinkService/DeleteSink": _changing(lambda request: [Need(Action.DELETE, Kind.SINK, request.sink)]),
    # Whether a broker serves is for load balancers, too.
    "/grpc.health.v1.Health/Check": _OPEN,
    "/grpc.health.v1.Health/List": _OPEN,
    "/grpc.health.v1.Health/Watch": _OPEN,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": Entry(
        lambda _: [Need(Action.GET, Kind.CLUSTER, "reflection")]
    ),
}
"""By the path of the method."""


class Gate:
    """Lets calls in: finds out who makes them, and judges what they are about."""

    def __init__(
        self,
        credentials: Credentials,
        rights: Rights,
        calls: Mapping[str, Entry] = CALLS,
        *,
        judging: Sequence[str] = (),
    ) -> None:
        """Takes what is accepted from clients, the rights, the table, and services that judge calls themselves."""
        self._judging = tuple(f"/{service}/" for service in judging)
        self._credentials = credentials
        self._rights = rights
        self._calls = calls

    async def start(self) -> None:
        """Fetches what is not here yet.

        Raises:
            ConfigurationError: keys cannot be fetched.
        """
        if self._credentials.jwts is not None:
            await self._credentials.jwts.refresh()

    async def enter(self, method: str, context: Any, headers: Sequence[tuple[str, str | bytes]]) -> str:
        """Finds out who makes a call, before its request is read; returns the name, which may be empty.

        Raises:
            Unauthenticated: nobody who is known.
            Denied: the method has no entry.
            Overloaded: the tenant has used up its quota.
        """
        entry = self._calls.get(method)
        judged = entry is not None and not entry.open
        if judged and (known := self._credentials.known(context, headers)) is not None:
            caller = known.callers.get(method)
            if caller is None:
                caller = Caller(known.principal, self._rights, call_name(method), known.principal.address)
                known.callers[method] = caller
        else:
            name = call_name(method)
            # Whoever judges calls later finds nobody, unless somebody is known.
            caller = Caller(NOBODY, self._rights, name, address_of(context.peer()))
            CALLER.set(caller)
            if (entry is not None and entry.open) or method.startswith(self._judging):
                return ""
            try:
                caller = caller.as_known(await self._credentials.principal(context))
            except Unauthenticated:
                caller.not_known()
                raise
        CALLER.set(caller)
        if entry is None:
            raise Denied
        _enter_send(entry, caller)
        return caller.name

    def enter_again(self, method: str) -> None:
        """Lets a call in that has waited since, and others of its tenant may have sent.

        Raises:
            Overloaded: the tenant has used up its quota.
        """
        if (entry := self._calls.get(method)) is not None:
            _enter_send(entry, CALLER.get())

    async def look_again(self, method: str, context: Any) -> None:
        """Finds out whether the caller of a stream is still known by what it has shown, as the same principal.

        Raises:
            Unauthenticated: it is not.
        """
        caller = CALLER.get()
        if caller.principal is None or method.startswith(self._judging):
            return
        if await self._credentials.principal(context) != caller.principal:
            raise Unauthenticated

    def judge(self, method: str, request: Any) -> Callable[[], None]:
        """Judges a request, or the first one of a stream; returns how to judge it again, for as long as it lasts.

        Raises:
            Denied: it needs more than the caller may.
        """
        if method.startswith(self._judging):
            return _nothing
        entry = self._calls[method]
        if entry.open:
            return _nothing
        caller = CALLER.get()
        needs = list(entry.needs(request))
        caller.require(needs)
        if entry.sends is not None and caller.tenant:
            caller.sent(entry.sends(request), request.ByteSize())
        return _Permit(caller, needs).again if needs else _nothing

    def stream(self) -> AbstractContextManager[None]:
        """Counts a stream of the current caller's tenant while it lasts.

        Raises:
            Overloaded: the tenant has as many as it may have.
        """
        return CALLER.get().stream()


def _enter_send(entry: Entry, caller: Caller) -> None:
    if entry.sends is not None and caller.tenant:
        caller.enter_send(waits=entry.waits)


class _Permit:
    """What a call was let in for."""

    __slots__ = ("_caller", "_needs", "_version")

    def __init__(self, caller: Caller, needs: list[Need]) -> None:
        self._caller, self._needs, self._version = caller, needs, caller.version

    def again(self) -> None:
        """Judges it again where the rules have changed; raises Denied."""
        if self._caller.version != self._version:
            self._version = self._caller.version
            self._caller.require(self._needs)


def _nothing() -> None:
    return


class ChangeRecorder:
    """Records calls that change what operators set, before they are made, and those of them that failed."""

    def __init__(self, audit: Audit, calls: Mapping[str, Entry] = CALLS) -> None:
        """Takes the record, and the table."""
        self._audit = audit
        self._calls = calls

    def records(self, method: str) -> bool:
        """Whether calls of a method are recorded."""
        entry = self._calls.get(method)
        return entry is not None and entry.changes is not None

    async def changing(self, method: str, request: Any, context: Any) -> Change:
        """Records a call; one that its servicer judges is recorded when that has said that it may be made.

        Raises:
            StorageUnavailable: it cannot be recorded; the call must not be made.
        """
        entry = self._calls[method]
        assert entry.changes is not None  # noqa: S101 - see `records`
        need = next(iter(entry.needs(request)), None)
        record = AuditRecord(
            CALLER.get().name,
            address_of(context.peer()),
            call_name(method),
            action_name(need.action if need is not None else Action.OPERATE),
            entry.changes(request)[:LONGEST_NAME],
            AuditOutcome.ALLOWED,
            detail=brief(request),
        )
        change = Change(self._audit, record)
        CHANGE.set(change)
        if not entry.items:
            await change.begins()
        return change

    def failed(self, change: Change, error: BaseException) -> None:
        """Notes that a recorded call failed, or that its client gave it up."""
        if isinstance(error, asyncio.CancelledError | GeneratorExit):
            change.failed("cancelled: it may have been made")
        elif isinstance(error, StorageUnavailable):
            # A COMMIT without an answer may have taken effect.
            change.failed(f"{error.reason}: it may have been made")
        else:
            change.failed(error.reason if isinstance(error, BrokerError) else type(error).__name__)


def brief(request: Message) -> str:
    """A request as JSON, as far as it is short: made of as much of it as is shown, however large it is."""
    text = json.dumps(_brief(request, 0), ensure_ascii=False)
    return text if len(text) <= LONGEST_DETAIL else f"{text[:LONGEST_DETAIL]} ... (cut)"


def _brief(message: Message, depth: int) -> Any:
    shown: dict[str, Any] = {}
    for field, value in message.ListFields():
        if isinstance(value, MutableSequence):
            items = [_brief_value(each, depth) for each in islice(value, MOST_SHOWN)]
            shown[field.name] = items if len(value) <= MOST_SHOWN else [*items, f"... {len(value) - MOST_SHOWN} more"]
        else:
            shown[field.name] = _brief_value(value, depth)
    return shown


def _brief_value(value: Any, depth: int) -> Any:
    if isinstance(value, Message):
        return _brief(value, depth + 1) if depth < DEEPEST_SHOWN else "..."
    if isinstance(value, str | bytes):
        return str(value[:LONGEST_SHOWN]) + ("..." if len(value) > LONGEST_SHOWN else "")
    return value


def call_name(method: str) -> str:
    """A method as it is recorded: its service without package, and its name."""
    return method.rpartition(".")[2].lstrip("/")
