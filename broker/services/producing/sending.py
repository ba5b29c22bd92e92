"""Ordinary messages: sending them, and recalling scheduled ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from broker.domain.ids import message_id
from broker.domain.message import LogPosition
from broker.errors import BrokerError, InvalidArgument, Overloaded, StorageUnavailable
from broker.ports.log import Duplicate, RecallWork, SendWork
from broker.services.ids import new_id
from broker.services.positions import Released
from broker.services.producing.validation import names_deleted_topic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.domain.limits import Limits
    from broker.domain.message import Message
    from broker.domain.place import Place
    from broker.ports.log import LogStore
    from broker.services.positions import Positions
    from broker.services.producing.validation import MessageValidator
    from broker.services.wakeups import Wakeups

UNKNOWN_OFFSET = -1


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

    def __init__(self, log: LogStore, validator: MessageValidator, positions: Positions, wakeups: Wakeups) -> None:
        """Takes the log, the validator, and the wake-ups."""
        self._log = log
        self._validator = validator
        self._positions = positions
        self._wakeups = wakeups

    @property
    def limits(self) -> Limits:
        """Limits of messages and requests."""
        return self._validator.limits

    async def send(self, messages: Sequence[OrdinaryMessage | BrokerError]) -> list[Sent | BrokerError]:
        """Appends or schedules messages; errors among the messages are passed through."""
        self.limits.check_items(len(messages), "messages")
        outcomes: list[Sent | BrokerError | None] = [None] * len(messages)
        now = self._validator.now()
        work: list[SendWork] = []
        indexes: list[int] = []
        stopped: _Stopped = {}
        for index, item in enumerate(messages):
            try:
                if isinstance(item, BrokerError):
                    raise item
                if stopped and (front := stopped.get(order_of(item.message))) is not None:
                    outcomes[index] = front
                    continue
                destination = await self._validator.destination(item.message, now)
                work.append(SendWork(item.message_id or new_id(), *destination, item.message))
                indexes.append(index)
            except InvalidArgument as error:
                outcomes[index] = error.within(f"messages[{index}]")
                error.as_outcome()
            except BrokerError as error:
                outcomes[index] = error.as_outcome()
                if not isinstance(item, BrokerError):
                    _stop(stopped, item.message, error)
        released = Released()
        for index, sent, done in zip(indexes, work, await self._appended(work, now), strict=True):
            if isinstance(done, InvalidArgument):
                outcomes[index] = done.within(f"messages[{index}]")
            elif isinstance(done, BrokerError):
                outcomes[index] = done
            else:
                outcomes[index] = await self.sent(sent, done, released)
        self._wakeups.arrived(released)
        return [outcome for outcome in outcomes if outcome is not None]

    async def _appended(self, work: list[SendWork], now: int) -> list[Place | Duplicate | BrokerError]:
        done: list[Place | Duplicate | BrokerError] = list(await self._log.send(work))
        again: dict[int, SendWork] = {}
        gone = [index for index, outcome in enumerate(done) if names_deleted_topic(outcome)]
        # Another broker deleted the topics that are cached here; some may have been re-created.
        self._validator.forget_topics([work[index].message.topic for index in gone])
        stopped: _Stopped = {}
        looked_at = set(gone)
        for index, outcome in enumerate(done) if gone else ():
            item = work[index]
            if index not in looked_at:
                _stop(stopped, item.message, outcome)
                continue
            if stopped and (front := stopped.get(order_of(item.message))) is not None:
                done[index] = front
                continue
            try:
                destination = await self._validator.destination(item.message, now)
                again[index] = SendWork(item.message_id, *destination, item.message)
            except BrokerError as error:
                done[index] = error
                _stop(stopped, item.message, error)
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

    async def recall(self, message_ids: Sequence[tuple[bytes, int] | BrokerError]) -> list[int | BrokerError]:
        """Recalls scheduled messages; returns the time of each recall (microseconds), or the error."""
        self.limits.check_items(len(message_ids), "message_ids")
        work = [RecallWork(*item) for item in message_ids if not isinstance(item, BrokerError)]
        recalled = iter(await self._log.recall(work) if work else [])
        return [item if isinstance(item, BrokerError) else next(recalled) for item in message_ids]


_Stopped: TypeAlias = dict[tuple[str, str] | None, BrokerError]
"""Message groups with a temporarily refused message: it will be resent, and no later one may overtake it."""


def order_of(message: Message) -> tuple[str, str] | None:
    """What a message keeps its order in: its topic and message group."""
    return None if message.message_group is None else (message.topic, message.message_group)


def _stop(stopped: _Stopped, message: Message, outcome: object) -> None:
    if message.message_group is not None and isinstance(outcome, StorageUnavailable | Overloaded):
        stopped.setdefault(order_of(message), outcome)
