"""Transactions: prepare, decide, look at, resolve."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from broker.domain.ids import message_id, uuid7
from broker.domain.limits import Limits, check_operator, check_reason, check_transaction_size, same_key_twice
from broker.domain.message import LogPosition, Message
from broker.domain.transaction import TransactionState, VerdictSource
from broker.errors import BrokerError, InvalidArgument, NotFound, Overloaded, StorageUnavailable
from broker.ports.log import Duplicate, RecallWork, SendWork
from broker.ports.places import RECALLED, SCHEDULED
from broker.ports.transactions import Half, PrepareWork, TransactionFilter, TransactionOutcome, VerdictWork
from broker.services.catalog import page_limit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from broker.domain.check_policy import CheckPolicy
    from broker.domain.clock import Clock
    from broker.domain.topic import Topic
    from broker.ports.places import Place, Queue
    from broker.ports.storage import Storage
    from broker.ports.transactions import TransactionDetail, TransactionSummary
    from broker.services.catalog import Catalog
    from broker.services.wakeups import Wakeups

ID_BYTES = 16
UNKNOWN_OFFSET = -1
LONGEST_CHECK_DELAY = 24 * 3600 * 1_000_000


@dataclass(slots=True)
class HalfTransaction:
    """Half messages as a producer hands them in; None as id lets the broker make one."""

    transaction_id: bytes | None
    messages: list[Message]
    first_position: int = 0
    first_check_delay: int = 0


@dataclass(slots=True)
class OrdinaryMessage:
    """An ordinary message as a producer hands it in; None as id lets the broker make one."""

    message_id: bytes | None
    message: Message


@dataclass(slots=True)
class Sent:
    """Where an ordinary message is; of a duplicate, which was dropped, where the first one is."""

    position: LogPosition
    duplicate: bool = False


@dataclass(slots=True)
class PlacedOutcome:
    """Where a transaction stands, and where its messages lie when it is committed."""

    transaction_id: bytes
    state: TransactionState
    released: list[LogPosition]


class _Ids:
    """Makes ids that grow, also within a millisecond: messages of one request keep their order by them."""

    def __init__(self) -> None:
        self._last = 0

    def new(self) -> bytes:
        fresh = int.from_bytes(uuid7(time.time_ns() // 1_000_000, os.urandom(10)), "big")
        self._last = max(fresh, self._last + 1)
        return self._last.to_bytes(16, "big")


_ids = _Ids()


def new_id() -> bytes:
    """A fresh time-ordered id, greater than those before."""
    return _ids.new()


class TransactionService:
    """Takes in half messages and verdicts, and ordinary messages, which are both in one."""

    def __init__(
        self,
        store: Storage,
        catalog: Catalog,
        wakeups: Wakeups,
        *,
        clock: Clock,
        limits: Limits | None = None,
        policy: CheckPolicy,
        on_scheduled: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Takes what it works with.

        Args:
            store: where all is kept.
            catalog: topics and producer groups.
            wakeups: told what was released.
            clock: the database's time.
            limits: of messages and requests.
            policy: of the check-back.
            on_scheduled: told the times for which messages wait.
        """
        self._store = store
        self._catalog = catalog
        self._wakeups = wakeups
        self.limits = limits or Limits()
        self._clock = clock
        self._policy = policy
        self._on_scheduled = on_scheduled

    async def prepare(
        self, producer_group: str, requests: Sequence[HalfTransaction | BrokerError]
    ) -> list[PlacedOutcome | BrokerError]:
        """Stores half messages; one outcome per request, errors among the requests are passed through."""
        self.limits.check_items(len(requests), "transactions")
        group_id = await self._catalog.producer_group_id(producer_group)
        outcomes: list[PlacedOutcome | BrokerError | None] = [None] * len(requests)
        work: list[PrepareWork] = []
        places: list[int] = []
        for index, request in enumerate(requests):
            if isinstance(request, BrokerError):
                outcomes[index] = request
                continue
            try:
                work.append(await self.half_work(group_id, request))
                places.append(index)
            except BrokerError as error:
                outcomes[index] = error.as_outcome()
        for index, done in zip(places, await self._stored(work), strict=True):
            outcomes[index] = done if isinstance(done, BrokerError) else await self._placed(done)
        return [outcome for outcome in outcomes if outcome is not None]

    async def _stored(self, work: list[PrepareWork]) -> list[TransactionOutcome | BrokerError]:
        done: list[TransactionOutcome | BrokerError] = list(await self._store.prepare(work))
        again: dict[int, PrepareWork] = {}
        for index, outcome in enumerate(done):
            if names_deleted_topic(outcome):
                try:
                    again[index] = await self.looked_up_anew(work[index])
                except BrokerError as error:
                    done[index] = error
        for index, outcome in zip(again, await self._store.prepare(list(again.values())) if again else [], strict=True):
            done[index] = outcome
        return done

    async def looked_up_anew(self, work: PrepareWork) -> PrepareWork:
        """The same work on the topics that have these names now: the others were deleted through another broker.

        Raises:
            InvalidArgument: a topic made anew does not take such a message.
            NotFound: a topic does not exist any more.
        """
        messages = [half.message for half in work.halves]
        self._store.forget_topics([message.topic for message in messages])
        again = HalfTransaction(work.transaction_id, messages, work.first_position, work.first_check_delay)
        return replace(await self.half_work(work.producer_group_id, again), checked=work.checked)

    async def half_work(self, group_id: int, request: HalfTransaction) -> PrepareWork:
        """The work of storing a transaction's half messages.

        Raises:
            InvalidArgument: a message or their number breaks a limit.
            NotFound: a topic does not exist.
        """
        messages = request.messages
        self.limits.check_halves(request.first_position, len(messages))
        if request.first_position and request.transaction_id is None:
            raise InvalidArgument("Name the transaction that gets more messages.", field="transaction_id")
        if not 0 <= request.first_check_delay <= LONGEST_CHECK_DELAY:
            raise InvalidArgument("The delay must be between 0 s and 24 h.", field="first_check_delay")
        halves = []
        now = self._clock.now()
        dedup_keys: set[tuple[str, str]] = set()
        for index, message in enumerate(messages):
            try:
                halves.append(Half(*await self._destination(message, now), message))
                if message.dedup_key is not None:
                    _add_once(dedup_keys, message.topic, message.dedup_key)
            except InvalidArgument as error:
                raise error.within(f"messages[{index}]") from None
            except NotFound as error:
                raise NotFound(error.message, reason=error.reason, field=f"messages[{index}].topic") from None
        if len(halves) > 1:
            check_transaction_size(sum([half.message.size for half in halves]))
        return PrepareWork(
            request.transaction_id or new_id(), group_id, halves, request.first_position, request.first_check_delay
        )

    async def _destination(self, message: Message, now: int) -> tuple[int, int | None]:
        self.limits.check_message(message)
        if message.delay is not None or message.deliver_at is not None:
            self.limits.set_delivery(message, now)
        topic = self._catalog.known_topic(message.topic) or await self._catalog.topic(message.topic)
        if message.priority:
            _check_priority(message, topic)
        if message.message_group is None:
            return topic.topic_id, None
        return topic.topic_id, topic.queue_of_group(message.message_group)

    async def decide(self, verdicts: Sequence[VerdictWork | BrokerError]) -> list[PlacedOutcome | BrokerError]:
        """Commits or rolls back; one outcome per verdict, errors among the verdicts are passed through."""
        self.limits.check_items(len(verdicts), "transaction_ids")
        work = [verdict for verdict in verdicts if isinstance(verdict, VerdictWork)]
        decided = iter(await self._store.decide(work))
        outcomes: list[PlacedOutcome | BrokerError] = []
        heads: dict[Queue, int] = {}
        for verdict in verdicts:
            done = verdict if isinstance(verdict, BrokerError) else next(decided)
            if isinstance(done, TransactionOutcome):
                outcomes.append(await self._placed(done, heads))
            else:
                outcomes.append(done)
        self._wakeups.released(heads)
        return outcomes

    async def send(self, messages: Sequence[OrdinaryMessage | BrokerError]) -> list[Sent | BrokerError]:
        """Appends or schedules ordinary messages; errors among the messages are passed through."""
        self.limits.check_items(len(messages), "messages")
        outcomes: list[Sent | BrokerError | None] = [None] * len(messages)
        now = self._clock.now()
        work: list[SendWork] = []
        places: list[int] = []
        stopped: _Stopped = {}
        for index, item in enumerate(messages):
            try:
                if isinstance(item, BrokerError):
                    raise item
                if stopped and (front := stopped.get(_order(item.message))) is not None:
                    outcomes[index] = front
                    continue
                destination = await self._destination(item.message, now)
                work.append(SendWork(item.message_id or new_id(), *destination, item.message))
                places.append(index)
            except InvalidArgument as error:
                outcomes[index] = error.within(f"messages[{index}]")
                error.as_outcome()
            except BrokerError as error:
                outcomes[index] = error.as_outcome()
                if not isinstance(item, BrokerError):
                    _stop(stopped, item.message, error)
        heads: dict[Queue, int] = {}
        for index, sent, done in zip(places, work, await self._appended(work, now), strict=True):
            if isinstance(done, Duplicate):
                outcomes[index] = Sent(await self._place_of_owner(sent.message.topic, done), duplicate=True)
            elif isinstance(done, InvalidArgument):
                outcomes[index] = done.within(f"messages[{index}]")
            elif isinstance(done, BrokerError):
                outcomes[index] = done
            else:
                position = await self._position(sent.message_id, 0, done, heads)
                position.topic = sent.message.topic
                outcomes[index] = Sent(position)
        self._wakeups.released(heads)
        return [outcome for outcome in outcomes if outcome is not None]

    async def _appended(self, work: list[SendWork], now: int) -> list[Place | Duplicate | BrokerError]:
        done: list[Place | Duplicate | BrokerError] = list(await self._store.send(work))
        again: dict[int, SendWork] = {}
        gone = [index for index, outcome in enumerate(done) if names_deleted_topic(outcome)]
        # Another broker deleted the topics that this one remembers; some may have been made anew.
        self._store.forget_topics([work[index].message.topic for index in gone])
        stopped: _Stopped = {}
        looked_at = set(gone)
        for index, outcome in enumerate(done) if gone else ():
            item = work[index]
            if index not in looked_at:
                _stop(stopped, item.message, outcome)
                continue
            if stopped and (front := stopped.get(_order(item.message))) is not None:
                done[index] = front
                continue
            try:
                again[index] = SendWork(item.message_id, *await self._destination(item.message, now), item.message)
            except BrokerError as error:
                done[index] = error
                _stop(stopped, item.message, error)
        for index, outcome in zip(again, await self._store.send(list(again.values())) if again else [], strict=True):
            done[index] = outcome
        return done

    async def _place_of_owner(self, topic: str, owner: Duplicate) -> LogPosition:
        if owner.place is None:  # It was decided so long ago that its op record is gone.
            return LogPosition(topic, 0, UNKNOWN_OFFSET, message_id(owner.transaction_id, owner.position))
        position = await self._position(owner.transaction_id, owner.position, owner.place)
        position.topic = topic
        return position

    async def recall(self, message_ids: Sequence[tuple[bytes, int] | BrokerError]) -> list[int | BrokerError]:
        """Takes back messages that wait for their time; when each was recalled, or why it cannot be."""
        self.limits.check_items(len(message_ids), "message_ids")
        work = [RecallWork(*item) for item in message_ids if not isinstance(item, BrokerError)]
        recalled = iter(await self._store.recall(work) if work else [])
        return [item if isinstance(item, BrokerError) else next(recalled) for item in message_ids]

    async def transaction(self, transaction_id: bytes) -> tuple[TransactionDetail, list[LogPosition]]:
        """All that is known of a transaction, and where its messages lie.

        Raises:
            NotFound: nothing is known of it.
        """
        detail = await self._store.transaction(transaction_id)
        if detail is None:
            raise NotFound(
                "There is no transaction with this id: it was never prepared here, or its op record is past retention.",
                reason="TRANSACTION_NOT_FOUND",
                field="transaction_id",
            )
        released = detail.op.released if detail.op else ()
        placed = await self._placed(TransactionOutcome(transaction_id, detail.summary.state, released))
        return detail, placed.released

    async def undecided(
        self,
        *,
        state: TransactionState | None,
        producer_group: str,
        topic: str,
        prepared_before: int | None,
        page_size: int,
        page_token: str,
    ) -> tuple[list[TransactionSummary], str]:
        """A page of transactions without a verdict, oldest first, and the token of the next page."""
        size = page_limit(page_size)
        found = await self._store.list_transactions(
            TransactionFilter(
                state=state,
                producer_group=producer_group or None,
                topic_id=(await self._catalog.topic(topic)).topic_id if topic else None,
                prepared_before=prepared_before,
                after=_parse_page(page_token),
                limit=size + 1,
            )
        )
        if len(found) <= size:
            return found, ""
        last = found[size - 1]
        return found[:size], f"{last.prepared_at:x}.{last.transaction_id.hex()}"

    async def resolve(self, transaction_id: bytes, *, commit: bool | None, operator: str, reason: str) -> PlacedOutcome:
        """Decides in the producer's place; None as verdict has the transaction checked again.

        Raises:
            InvalidArgument: no reason, or one too long.
            NotFound: no such transaction.
            VerdictConflict: it has the opposite verdict.
        """
        reason = check_reason(reason.strip())
        if not reason:
            raise InvalidArgument("An operator's decision needs a reason; it is kept.", field="reason")
        operator = check_operator(operator)
        if commit is None:
            outcome = await self._store.check_again(transaction_id, self._policy, operator, reason)
            return await self._placed(outcome)
        work = VerdictWork(transaction_id, commit, VerdictSource.OPERATOR, reason, operator)
        result = (await self.decide([work]))[0]
        if isinstance(result, BrokerError):
            raise result
        return result

    async def _placed(self, outcome: TransactionOutcome, heads: dict[Queue, int] | None = None) -> PlacedOutcome:
        released = [
            await self._position(outcome.transaction_id, position, place, heads)
            for position, place in enumerate(outcome.released)
        ]
        return PlacedOutcome(outcome.transaction_id, outcome.state, released)

    async def _position(
        self, transaction_id: bytes, position: int, place: Place, heads: dict[Queue, int] | None = None
    ) -> LogPosition:
        queue_id, offset, *rest = place
        own_id = message_id(transaction_id, position)
        if queue_id == SCHEDULED:
            if heads is not None:
                self._on_scheduled(offset)
            return LogPosition(await self._store.find_topic_name(rest[0]), 0, 0, own_id, scheduled_at=offset)
        if queue_id == RECALLED:
            return LogPosition(await self._store.find_topic_name(rest[0]), 0, 0, own_id, recalled_at=offset)
        topic, queue_no = self._store.known_queue(queue_id) or await self._queue(queue_id)
        if heads is not None and topic is not None:
            queue = (topic.topic_id, queue_id)
            heads[queue] = max(offset + 1, heads.get(queue, 0))
        return LogPosition(topic.name if topic is not None else "", queue_no, offset, own_id)

    async def _queue(self, queue_id: int) -> tuple[Topic | None, int]:
        return await self._store.find_topic_of_queue(queue_id) or (None, 0)


_Stopped: TypeAlias = dict[tuple[str, str] | None, BrokerError]
"""Message groups of which a message failed in passing: it comes again, and nothing of its group may pass it."""


def _order(message: Message) -> tuple[str, str] | None:
    return None if message.message_group is None else (message.topic, message.message_group)


def _stop(stopped: _Stopped, message: Message, outcome: object) -> None:
    if message.message_group is not None and isinstance(outcome, StorageUnavailable | Overloaded):
        stopped.setdefault(_order(message), outcome)


def names_deleted_topic(outcome: object) -> bool:
    """Whether something was refused because its topic is gone."""
    return isinstance(outcome, NotFound) and outcome.reason == "TOPIC_NOT_FOUND"


def _check_priority(message: Message, topic: Topic) -> None:
    if message.message_group is not None:
        raise InvalidArgument(
            "A message of a message group has no priority: the group lies in one queue, in its order. Leave one of the"
            " two out.",
            field="priority",
        )
    if message.priority >= topic.priority_levels:
        raise InvalidArgument(
            f"Priority {message.priority}, but the topic {topic.name!r} has {topic.priority_levels} priorities, from 0"
            " on; create a topic with more priority_levels.",
            field="priority",
        )


def _add_once(dedup_keys: set[tuple[str, str]], topic: str, dedup_key: str) -> None:
    if (topic, dedup_key) in dedup_keys:
        raise same_key_twice("dedup_key")
    dedup_keys.add((topic, dedup_key))


def _parse_page(token: str) -> tuple[int, bytes] | None:
    if not token:
        return None
    try:
        time, text = token.split(".", 2)
        born_at, raw = int(time, 16), bytes.fromhex(text)
        if not 0 <= born_at < 1 << 63 or len(raw) != ID_BYTES:
            raise ValueError(token)
    except ValueError:
        raise InvalidArgument(
            "This is no page token; use next_page_token of the page before.", field="page_token"
        ) from None
    return born_at, raw
