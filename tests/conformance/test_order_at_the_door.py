"""What cannot be looked up for a moment holds back its successors of the same message group, in the same request."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from broker.domain.message import Message
from broker.domain.topic import TopicSettings
from broker.errors import StorageUnavailable
from broker.services.catalog import Catalog
from broker.services.positions import Positions
from broker.services.producing.sending import OrdinaryMessage, SendService, Sent
from broker.services.producing.validation import MessageValidator
from broker.services.wakeups import Wakeups
from conformance.world import HOUR, of

if TYPE_CHECKING:
    from broker.domain.topic import Topic
    from conformance.world import World


async def test_successors_wait_for_a_message_whose_topic_is_not_found_for_a_moment(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker, store = world.broker(), world.broker()
    await maker.create_topic("orders", TopicSettings(1, HOUR))
    find, failures = store.find_topic, [StorageUnavailable("away for a moment")]

    async def find_topic(name: str) -> Topic | None:
        if failures:
            raise failures.pop()
        return await find(name)

    monkeypatch.setattr(store, "find_topic", find_topic)
    service = SendService(
        store, MessageValidator(Catalog(store, store, store), world.clock), Positions(store), Wakeups()
    )
    listed = [("a", "a1"), ("b", "b1"), ("a", "a2"), (None, "c1")]
    outcomes = await service.send(
        [OrdinaryMessage(None, Message("orders", body.encode(), message_group=group)) for group, body in listed]
    )
    of(StorageUnavailable, outcomes[0])
    assert isinstance(outcomes[1], Sent)
    of(StorageUnavailable, outcomes[2])
    assert isinstance(outcomes[3], Sent)
