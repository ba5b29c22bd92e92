"""Messages of message groups, for tests of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.ports.log import SendWork
from conformance.world import new_id, ok, text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.domain.topic import Topic
    from broker.storage.adapters.store import Store
    from conformance.world import World


async def send(store: Store, topic: Topic, *names: str) -> None:
    """Sends messages such as "a1" (of message group a) and "-1" (of none)."""
    work = []
    for name in names:
        group = None if name[0] == "-" else name[0]
        work.append(SendWork(new_id(), topic.topic_id, 0, text(name, topic.name, message_group=group)))
    ok(await store.send(work))


def rows_of(world: World, query: str) -> Sequence[tuple[Any, ...]]:
    session = world.session()
    session.begin(write=False)
    found = session.fetch(query)
    session.rollback()
    return found
