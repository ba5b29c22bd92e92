"""Ordinary messages: sending them, and recalling scheduled ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.domain.ids import message_id
from broker.domain.message import LogPosition, Message
from broker.errors import BehindRefused, BrokerError, InvalidArgument, Overloaded, StorageUnavailable
from broker.ports.log import Duplicate, RecallWork, SendWork
from broker.ports.observer import NO_OBSERVER, Observer
from broker.ports.tracer import NO_TRACER, Tracer
from broker.services.ids import new_id
from broker.services.positions import UNKNOWN_OFFSET, Released
from broker.services.producing.telling import tell_refused, tell_stored
from broker.services.producing.validation import names_deleted_topic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.domain.limits import Limits
    from broker.domain.place import Place
    from broker.ports.log import LogStore
    from broker.services.judges import Judge
    from broker.services.positions import Positions
    from broker.services.producing.validation import MessageValidator
    from broker.services.wakeups import Wakeups


@dataclass(slots=True)
class OrdinaryMessage:
    """A producer's ordinary message; None as id: the broker generates one."""

    message_id: bytes | None
    message: Message


@dataclass(slots=True)
class Sent:
    """Position of an ordinary message; of a dropped duplicate, that of the first one."""

    position: LogPosition
    duplicate: bool = False


class SendService:
    """Appends and schedules ordinary messages."""

    def __init__(
        self,
        log: LogStore,
        validator: MessageValidator,
        positions: Positions,
        wakeups: Wakeups,
        observer: Observer = NO_OBSERVER,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        """Takes the log, the validator, the wake-ups, the observer, and the tracer."""
        self._observer = observer
        self._tracer = tracer
        self._log = log
        self._validator = validator
        self._positions = positions
        self._wakeups = wakeups

    @property
    def limits(self) -> Limits:
        """Limits of messages and requests."""
        return self._validator.limits

    async def send(
        self, messages: Sequence[OrdinaryMessage | BrokerError], *, in_order: bool = False
    ) -> list[Sent | BrokerError]:
        """Appends or schedules messages; errors among the messages are passed through.

        Args:
            messages: what to send.
            in_order: refuse each message that is behind a refused one of its message group (BehindRefused).
        """
        self.limits.check_items(len(messages), "messages")
        outcomes: list[Sent | BrokerError | None] = [None] * len(messages)
        now = self._validator.now()
        work: list[SendWork] = []
        indexes: list[int] = []
        groups = _Groups(in_order)
        for index, item in enumerate(messages):
            try:
                if isinstance(item, BrokerError):
                    raise item
                if (front := groups.front(item.message)) is not None:
                    outcomes[index] = front
                    continue
                destination = await self._validator.destination(item.message, now)
                work.append(groups.follow(SendWork(item.message_id or new_id(), *destination, item.message)))
                indexes.append(index)
            except BrokerError as error:
                outcome = error.within(f"messages[{index}]") if isinstance(error, InvalidArgument) else error
                outcomes[index] = outcome
                error.as_outcome()
                groups.stop(None if isinstance(item, BrokerError) else item.message, outcome)
        released = Released()
        began = self._tracer.now()
        for index, sent, done in zip(indexes, work, await self._appended(work, now), strict=True):
            if isinstance(done, InvalidArgument):
                outcomes[index] = done.within(f"messages[{index}]")
            elif isinstance(done, BrokerError):
                outcomes[index] = done
            else:
                if self._tracer.enabled:
                    self._tracer.stored("send", sent.message_id, [sent.message], "", began)
                outcomes[index] = await self.sent(sent, done, released)
        self._wakeups.arrived(released)
        self._tell(work, indexes, outcomes)
        return [outcome for outcome in outcomes if outcome is not None]

    def _tell(self, work: Sequence[SendWork], indexes: Sequence[int], outcomes: Sequence[object]) -> None:
        if self._observer is NO_OBSERVER:
            return
        new = [item.message for item, index in zip(work, indexes, strict=True) if _is_new(outcomes[index])]
        self.tell_stored(new)
        if len(new) < len(outcomes):
            tell_refused(self._observer, outcomes)

    def tell_stored(self, messages: Sequence[Message]) -> None:
        """Tells the observer of messages that were stored."""
        tell_stored(self._observer, messages)

    async def _appended(self, work: list[SendWork], now: int) -> list[Place | Duplicate | BrokerError]:
        done: list[Place | Duplicate | BrokerError] = list(await self._log.send(work))
        gone = _gone(work, done)
        if not gone:
            return done
        # Another broker deleted the topics that are cached here; some may have been re-created.
        self._validator.forget_topics([work[index].message.topic for index in gone])
        again: dict[int, SendWork] = {}
        instead: dict[int, SendWork] = {}
        groups = _Groups(in_order=False)
        for index, outcome in enumerate(done):
            item = work[index]
            if index not in gone:
                groups.stop(item.message, outcome)
                continue
            if (front := groups.front(item.message)) is not None:
                done[index] = front
                continue
            try:
                destination = await self._validator.destination(item.message, now)
                after = instead.get(id(item.after), item.after)
                again[index] = instead[id(item)] = SendWork(item.message_id, *destination, item.message, after)
            except BrokerError as error:
                done[index] = error.as_outcome()
                groups.stop(item.message, error)
        for index, outcome in zip(again, await self._log.send(list(again.values())) if again else [], strict=True):
            done[index] = outcome
        return done

    async def sent(self, item: SendWork, place: Place | Duplicate, released: Released) -> Sent:
        """Position of a message that is stored; of a duplicate, that of the message that owns its dedup_key."""
        topic = item.message.topic
        if not isinstance(place, Duplicate):
            position = await self._positions.of(place, message_id(item.message_id, 0), released)
        else:
            owner = message_id(place.transaction_id, place.position)
            if place.place is None:  # It was decided so long ago that its op record was deleted.
                return Sent(LogPosition(topic, 0, UNKNOWN_OFFSET, owner), duplicate=True)
            position = await self._positions.of(place.place, owner)
        position.topic = topic
        return Sent(position, duplicate=isinstance(place, Duplicate))

    async def recall(
        self, message_ids: Sequence[tuple[bytes, int] | BrokerError], may: Judge | None = None
    ) -> list[int | BrokerError]:
        """Recalls scheduled messages; returns the time of each recall (microseconds), or the error.

        Args:
            message_ids: their ids.
            may: the topics whose messages whoever asks may recall; None: all.
        """
        self.limits.check_items(len(message_ids), "message_ids")
        work = [RecallWork(*item, may) for item in message_ids if not isinstance(item, BrokerError)]
        recalled = iter(await self._log.recall(work) if work else [])
        return [item if isinstance(item, BrokerError) else next(recalled) for item in message_ids]


def order_of(message: Message) -> tuple[str, str] | None:
    """What a message keeps its order in: its topic and message group."""
    return None if message.message_group is None else (message.topic, message.message_group)


class _Groups:
    """Message groups of one request: what a refused message means for those behind it.

    One that failed for a moment will be resent, and no later one may overtake it. With `in_order`, this holds for every
    refused one: each message is told which one it follows, and the log looks whether that one is stored.
    """

    def __init__(self, in_order: bool) -> None:
        self._in_order = in_order
        self._stopped: dict[tuple[str, str], BrokerError] = {}
        self._last: dict[tuple[str, str], SendWork] = {}
        self._unreadable: SendWork | None = None

    def front(self, message: Message) -> BrokerError | None:
        """The outcome of a message that is behind one that failed for a moment."""
        order = order_of(message)
        return None if order is None else self._stopped.get(order)

    def follow(self, work: SendWork) -> SendWork:
        """Puts a message behind the one before it in its group; returns it."""
        order = order_of(work.message) if self._in_order else None
        if order is not None:
            work.after = self._last.get(order, self._unreadable)
            self._last[order] = work
        return work

    def stop(self, message: Message | None, outcome: object) -> None:
        """Notes the outcome of a message; None: of one that cannot be read, which may belong to any group."""
        order = None if message is None else order_of(message)
        if isinstance(outcome, StorageUnavailable | Overloaded):
            if order is not None:
                self._stopped.setdefault(order, outcome)
        elif isinstance(outcome, BrokerError) and self._in_order:
            if message is None:
                self._last.clear()
                self._unreadable = SendWork(b"", 0, None, _UNREADABLE)
            elif order is not None:
                self._last[order] = SendWork(b"", 0, None, message)


_UNREADABLE = Message("", b"")


def _is_new(outcome: object) -> bool:
    return isinstance(outcome, Sent) and not outcome.duplicate


def _gone(work: Sequence[SendWork], done: Sequence[object]) -> set[int]:
    """Indexes of messages whose topic was deleted, and of those that wait behind them."""
    found: dict[int, int] = {}
    for index, (item, outcome) in enumerate(zip(work, done, strict=True)):
        behind = isinstance(outcome, BehindRefused) and id(item.after) in found
        if behind or names_deleted_topic(outcome):
            found[id(item)] = index
    return set(found.values())
