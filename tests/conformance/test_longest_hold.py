"""A delivery is extended for a day, so that nobody keeps a message from its group for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from broker.domain.check_policy import SECOND
from broker.domain.lease import LONGEST_HOLD
from broker.errors import Refused
from broker.ports.delivery import ExtendWork, HoldWork, ReceiptOutcome
from conformance.world import LEASE, World, bodies, of, ok, pull, receipts, sending

if TYPE_CHECKING:
    from broker.domain.group import ConsumerGroup
    from broker.domain.lease import Receipt
    from broker.domain.topic import Topic
    from broker.storage.adapters.store import Store

TWELVE_HOURS = 12 * 3600 * SECOND


async def renewed(store: Store, receipt: Receipt, how: type[ExtendWork | HoldWork]) -> tuple[int, Receipt]:
    (outcome,) = await store.settle([how(receipt, TWELVE_HOURS)])
    assert isinstance(outcome, ReceiptOutcome), outcome
    assert outcome.expires_at is not None
    return outcome.expires_at, outcome.receipt or receipt


@pytest.mark.parametrize("message_group", [None, "customer"])
@pytest.mark.parametrize("how", [ExtendWork, HoldWork])
async def test_a_lease_that_is_renewed_without_end_ends(
    world: World,
    store: Store,
    topic: Topic,
    group: ConsumerGroup,
    how: type[ExtendWork | HoldWork],
    message_group: str | None,
) -> None:
    ok(await store.send([sending(topic, f"{n}", message_group=message_group) for n in range(2)]))
    receipt, *_ = receipts(await pull(store, group, topic, lease_time=TWELVE_HOURS, limit=2))
    for _ in range(3):
        world.clock.pass_time(LONGEST_HOLD // 4)
        ends, receipt = await renewed(store, receipt, how)
        assert ends == world.clock.now() + TWELVE_HOURS
    world.clock.pass_time(LONGEST_HOLD // 4)
    (outcome,) = await store.settle([how(receipt, LEASE)])
    refused = of(Refused, outcome)
    assert (refused.reason, refused.field) == ("LEASE_HELD_TOO_LONG", "receipt_handle")
    world.clock.time = ends
    assert "0" in bodies(await pull(store, group, topic))


async def test_the_next_delivery_has_its_own_day(
    world: World, store: Store, topic: Topic, group: ConsumerGroup
) -> None:
    ok(await store.send([sending(topic)]))
    await pull(store, group, topic, lease_time=TWELVE_HOURS)
    world.clock.pass_time(TWELVE_HOURS)
    (receipt,) = receipts(await pull(store, group, topic, lease_time=TWELVE_HOURS))
    world.clock.pass_time(TWELVE_HOURS)
    assert (await renewed(store, receipt, ExtendWork))[0] >= world.clock.now() + TWELVE_HOURS


async def test_a_lease_of_an_older_broker_is_extended_as_before(
    world: World, store: Store, topic: Topic, group: ConsumerGroup
) -> None:
    """Its token does not tell since when it is held."""
    ok(await store.send([sending(topic)]))
    (receipt,) = receipts(await pull(store, group, topic))
    for token in (12345, (1 << 62) - 1):
        session = world.session()
        session.begin()
        session.run("UPDATE lease SET token = ?", (token,))
        session.commit()
        older = type(receipt)(receipt.lease_id, token, receipt.offset)
        assert (await renewed(store, older, ExtendWork))[0] == world.clock.now() + TWELVE_HOURS
