"""Finding messages by identity, by key, by time and by position, and their events."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from broker.domain.ids import message_id
from broker.domain.limits import check_search_key
from broker.domain.place import InLog
from broker.errors import InvalidArgument, NotFound
from broker.ports.queries import MessageSearch, TimelineKind
from broker.services.catalog import topic_replaced
from broker.services.operating.timeline import transaction_events
from broker.services.paging import message_token, page_limit, parse_message_token

if TYPE_CHECKING:
    from broker.domain.filters import Filter
    from broker.domain.message import LogMessage, LogPosition
    from broker.domain.place import Place
    from broker.domain.topic import Topic
    from broker.ports.queries import FoundMessage, MessageQueryStore, TimelineEvent
    from broker.ports.transactions import TransactionDetails
    from broker.services.catalog import Catalog
    from broker.services.judges import Judge
    from broker.services.positions import Positions


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which messages of a topic to find; what is empty is not looked at. Times in microseconds.

    Attributes:
        since, until: when they became visible.
        queue_no, offset: the queue, and where to begin in it; only together.
        filter: what they match.
    """

    key: str = ""
    since: int | None = None
    until: int | None = None
    queue_no: int | None = None
    offset: int = 0
    filter: Filter | None = None


class MessageQueries:
    """Looks messages up."""

    def __init__(
        self, store: MessageQueryStore, details: TransactionDetails, catalog: Catalog, positions: Positions
    ) -> None:
        """Takes the ports of look-ups, and the catalog."""
        self._store = store
        self._details = details
        self._catalog = catalog
        self._positions = positions

    async def message(self, transaction_id: bytes, position: int, may: Judge | None = None) -> FoundMessage:
        """A message by its identity, in any state.

        Args:
            transaction_id: of its transaction.
            position: its position in that.
            may: the topics whose messages whoever asks may see; None: all.

        Raises:
            NotFound: nothing is known of it, or it may not be seen.
        """
        found = await self._store.find_message(transaction_id, position)
        if found is None or not await self._is_for(may, found, transaction_id, position):
            raise NotFound(
                f"There is no message {message_id(transaction_id, position)}: it never came here, or its op record is"
                " past retention.",
                reason="MESSAGE_NOT_FOUND",
                field="message_id",
            )
        return found

    async def messages(
        self, topic: str, wanted: Wanted, *, page_size: int, page_token: str
    ) -> tuple[list[LogMessage], str]:
        """A page of messages, and the token of the next page.

        Raises:
            InvalidArgument: the key, the queue, the offset, the size or the token is invalid.
            NotFound: there is no such topic.
            Refused: the page before was of another topic of this name.
        """
        size = page_limit(page_size)
        if wanted.key:
            check_search_key(wanted.key)
        topic_id, after = parse_message_token(page_token)
        found = await self._catalog.current_topic(topic)
        if topic_id not in {None, found.topic_id}:
            raise topic_replaced(topic, "page_token")
        search = MessageSearch(
            found,
            wanted.key,
            wanted.since,
            wanted.until,
            max(after, _beginning(found, wanted)),
            size,
            queue_no=wanted.queue_no,
            wanted=wanted.filter,
        )
        page = await self._store.find_messages(search)
        return page.messages, message_token(found.topic_id, page.following)

    async def position(self, place: Place, own_id: str) -> LogPosition:
        """Converts a place to a position."""
        return await self._positions.of(place, own_id)

    async def _is_for(self, may: Judge | None, found: FoundMessage, transaction_id: bytes, position: int) -> bool:
        """Whether a message may be seen: one whose topic is not known any more only by who may see everything."""
        if may is None:
            return True
        topic = await self._topic_of(found, transaction_id, position)
        return bool(topic or found.place is None) and may(topic)

    async def _topic_of(self, found: FoundMessage, transaction_id: bytes, position: int) -> str:
        """Its topic; empty if that was deleted."""
        for message in (found.message, found.waiting):
            if message is not None:
                return message.topic
        if found.place is None:
            return ""
        return (await self._positions.of(found.place, message_id(transaction_id, position))).topic

    async def timeline(
        self, transaction_id: bytes, position: int, may: Judge | None = None, may_group: Judge | None = None
    ) -> list[TimelineEvent]:
        """The events of a message, in order; `may` as for `message`.

        Of groups that whoever asks may not see (`may_group`; None: all may be seen) neither they nor their clients are
        named.

        Raises:
            NotFound: nothing is known of it.
        """
        found = await self.message(transaction_id, position, may)
        detail = await self._details.transaction(transaction_id)
        events = transaction_events(detail, position, found.message) if detail is not None else []
        places = detail.op.released if detail is not None and detail.op is not None else ()
        if position < len(places) and isinstance(place := places[position], InLog):
            events += await self._store.deliveries_of(place.queue_id, place.offset)
        if may_group is None:
            return events
        return [
            event if _is_of_group(event, may_group) else replace(event, group="", client_id="", reason="")
            for event in events
        ]


def _is_of_group(event: TimelineEvent, may: Judge) -> bool:
    # Of deliveries to a group that is not here any more nobody knows which it was.
    return bool(event.group or event.kind < TimelineKind.DELIVERED) and may(event.group)


def _beginning(topic: Topic, wanted: Wanted) -> tuple[int, int]:
    """Number of the queue and offset of the first message to look at."""
    if wanted.offset < 0:
        raise InvalidArgument("An offset cannot be negative.", field="offset")
    if wanted.queue_no is None:
        if wanted.offset:
            raise InvalidArgument("An offset is that of one queue: name it.", field="queue")
        return 0, 0
    topic.check_queue(wanted.queue_no)
    return wanted.queue_no, wanted.offset
