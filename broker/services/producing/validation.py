"""Validation of messages before they are stored: limits, topic, queue, time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from broker.domain.limits import Limits, check_transaction_size, same_key_twice
from broker.errors import InvalidArgument, NotFound
from broker.ports.transactions import Half, PrepareWork
from broker.services.ids import new_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.domain.clock import Clock
    from broker.domain.message import Message
    from broker.domain.topic import Topic
    from broker.services.catalog import Catalog

LONGEST_CHECK_DELAY = 24 * 3600 * 1_000_000


@dataclass(slots=True)
class HalfTransaction:
    """A producer's half messages; None as id: the broker generates one."""

    transaction_id: bytes | None
    messages: list[Message]
    first_position: int = 0
    first_check_delay: int = 0


class MessageValidator:
    """Validates messages, and resolves their topics and queues."""

    def __init__(self, catalog: Catalog, clock: Clock, limits: Limits | None = None) -> None:
        """Takes the catalog, the database's clock, and the limits of messages and requests."""
        self._catalog = catalog
        self._clock = clock
        self.limits = limits or Limits()

    def now(self) -> int:
        """The database's time, in microseconds."""
        return self._clock.now()

    def forget_topics(self, names: Sequence[str]) -> None:
        """Drops these topics from the cache: another broker deleted them, and some may have been re-created."""
        self._catalog.forget_topics(names)

    async def destination(self, message: Message, now: int) -> tuple[int, int | None]:
        """Topic id, and queue number if the message has a group; sets the message's delivery time.

        Raises:
            InvalidArgument: the message breaks a limit.
            NotFound: the topic does not exist.
        """
        self.limits.check_message(message)
        if message.delay is not None or message.deliver_at is not None:
            self.limits.set_delivery(message, now)
        topic = self._catalog.known_topic(message.topic) or await self._catalog.topic(message.topic)
        if message.priority:
            _check_priority(message, topic)
        if message.message_group is None:
            return topic.topic_id, None
        return topic.topic_id, topic.queue_of_group(message.message_group)

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
        now = self.now()
        dedup_keys: set[tuple[str, str]] = set()
        for index, message in enumerate(messages):
            try:
                halves.append(Half(*await self.destination(message, now), message))
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

    async def half_work_again(self, work: PrepareWork) -> PrepareWork:
        """The same work on the topics that have these names now; another broker deleted the former ones.

        Raises:
            InvalidArgument: a re-created topic does not accept such a message.
            NotFound: a topic does not exist any more.
        """
        messages = [half.message for half in work.halves]
        self.forget_topics([message.topic for message in messages])
        again = HalfTransaction(work.transaction_id, messages, work.first_position, work.first_check_delay)
        return replace(await self.half_work(work.producer_group_id, again), checked=work.checked)


def names_deleted_topic(outcome: object) -> bool:
    """Whether an item was refused because its topic was deleted."""
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
