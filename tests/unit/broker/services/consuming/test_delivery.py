"""Joining consumer groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from broker.domain.filters import FilterKind, compile_filter
from broker.domain.group import ConsumerGroup, GroupMode, GroupSettings
from broker.errors import InvalidArgument, NotFound
from broker.ports.delivery import JoinWork
from broker.services.consuming.config import DeliveryConfig
from broker.services.consuming.delivery import DeliveryService
from broker.services.consuming.subscription import SubscribeRequest
from broker.services.wakeups import Wakeups
from unit.broker.services.fakes import FakeNames

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from broker.errors import BrokerError
    from broker.ports.delivery import Claimed, ClaimWork


class Leases:
    """Lets consumers join, once it has failed as often as it is told."""

    def __init__(self, *failures: BrokerError) -> None:
        self.failures = list(failures)
        self.joined: list[JoinWork] = []

    async def join(self, work: JoinWork) -> ConsumerGroup:
        self.joined.append(work)
        if self.failures:
            raise self.failures.pop(0)
        return work.group

    async def claim(self, work: Sequence[ClaimWork]) -> list[Claimed | BrokerError]:
        raise NotImplementedError

    async def has_leases(self, lease_ids: Sequence[int]) -> bool:
        raise NotImplementedError

    async def settle(self, work: Sequence[Any]) -> list[Any]:
        raise NotImplementedError


def service(leases: Leases, names: FakeNames) -> DeliveryService:
    return DeliveryService(leases, leases, names.catalog(), Wakeups(), DeliveryConfig())


def names() -> FakeNames:
    return FakeNames("orders", "returns", groups=["billing"])


async def test_filters_are_joined_by_topic_id() -> None:
    leases, wanted = Leases(), compile_filter(FilterKind.TAG, "paid")
    await service(leases, names()).subscribe(
        SubscribeRequest("billing", ["orders", "returns"], "c", filters={"returns": wanted})
    )
    assert leases.joined[0].filters == {2: wanted}


async def test_a_consumer_without_a_name_gets_one() -> None:
    subscription = await service(Leases(), names()).subscribe(SubscribeRequest("billing", ["orders"]))
    assert subscription.client_id.startswith("consumer-")


async def test_the_lease_time_of_the_broker_is_the_default() -> None:
    subscription = await service(Leases(), names()).subscribe(SubscribeRequest("billing", ["orders"]))
    assert subscription.lease_time == DeliveryConfig().lease_time


async def test_in_a_broadcasting_group_a_consumer_needs_a_name() -> None:
    found = names()
    found.groups["billing"] = ConsumerGroup(1, "billing", 0, GroupSettings(3, mode=GroupMode.BROADCASTING))
    delivery = service(Leases(), found)
    with pytest.raises(InvalidArgument) as refused:
        await delivery.subscribe(SubscribeRequest("billing", ["orders"]))
    assert refused.value.field == "client_id"
    await delivery.subscribe(SubscribeRequest("billing", ["orders"], "c"))


async def test_what_was_made_again_elsewhere_is_looked_up_again() -> None:
    found, leases = names(), Leases(NotFound("gone", reason="TOPIC_NOT_FOUND"))
    delivery = service(leases, found)
    await found.find_topic("orders")
    again = found.make_topic("orders")
    await delivery.subscribe(SubscribeRequest("billing", ["orders"], "c"))
    assert [topic.topic_id for work in leases.joined for topic in work.topics] == [1, again.topic_id]


async def test_no_group_is_created_for_topics_that_are_gone() -> None:
    found = names()
    delivery = DeliveryService(Leases(), Leases(), found.catalog(create_groups=True), Wakeups(), DeliveryConfig())
    await found.find_topic("orders")
    del found.topics["orders"]
    with pytest.raises(NotFound) as refused:
        await delivery.subscribe(SubscribeRequest("new", ["orders"], "c"))
    assert refused.value.reason == "TOPIC_NOT_FOUND"
    assert "new" not in found.groups
    found.make_topic("orders")
    await delivery.subscribe(SubscribeRequest("new", ["orders"], "c"))
    assert "new" in found.groups


async def test_what_is_gone_for_good_is_told() -> None:
    gone = NotFound("gone", reason="TOPIC_NOT_FOUND")
    with pytest.raises(NotFound):
        await service(Leases(gone, gone), names()).subscribe(SubscribeRequest("billing", ["orders"], "c"))


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (SubscribeRequest("billing", []), "topics"),
        (SubscribeRequest("billing", ["orders"], "c" * 1000), "client_id"),
        (SubscribeRequest("billing", ["orders"], lease_time=1), "lease_duration"),
        (
            SubscribeRequest("billing", ["orders"], filters={"x": compile_filter(FilterKind.TAG, "t")}),
            "filters.topic",
        ),
        (SubscribeRequest("billing", ["orders", "missing"]), "topics[1]"),
    ],
)
async def test_what_cannot_be_is_refused_by_name(request_: SubscribeRequest, field: str) -> None:
    with pytest.raises((InvalidArgument, NotFound)) as refused:
        await service(Leases(), names()).subscribe(request_)
    assert refused.value.field == field
