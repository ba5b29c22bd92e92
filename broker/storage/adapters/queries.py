"""Finding messages and their events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.domain.lease import LARGEST_RANGE
from broker.storage.adapters.access import Access
from broker.storage.delivery import delivery_events
from broker.storage.log import message_queries

if TYPE_CHECKING:
    from broker.ports.queries import FoundMessage, FoundPage, MessageSearch, TimelineEvent


class Queries(Access):
    """Implements MessageQueryStore."""

    async def find_message(self, transaction_id: bytes, position: int) -> FoundMessage | None:
        """A message by its identity, in any state."""
        return await self._read(
            lambda session: message_queries.find_message(session, transaction_id, position, self.directory)
        )

    async def find_messages(self, search: MessageSearch) -> FoundPage:
        """Messages of a topic by key, by time, or both."""
        return await self._read(lambda session: message_queries.find_messages(session, search))

    async def deliveries_of(self, queue_id: int, offset: int) -> list[TimelineEvent]:
        """The delivery events of a message, in order."""
        return await self._read(
            lambda session: delivery_events.events_of(session, queue_id, offset, LARGEST_RANGE, self.directory)
        )
