"""From names to topics and groups."""

from __future__ import annotations

import re
from typing import NoReturn

import pytest

from broker.domain.access import Action, Kind, Principal, Rules, rule_of
from broker.domain.topic import TopicChange
from broker.errors import (
    AlreadyExists,
    BrokerError,
    InvalidArgument,
    Moved,
    NotFound,
    Overloaded,
    Refused,
    StorageUnavailable,
)
from broker.services.judges import Judges
from broker.services.rights import CALLER, Caller
from unit.broker.services.fakes import FakeNames


async def test_a_topic_is_looked_up_once() -> None:
    names = FakeNames("orders")
    catalog = names.catalog()
    assert await catalog.topic("orders") is await catalog.topic("orders")
    assert names.look_ups == ["orders"]


async def test_an_unknown_topic_is_refused_and_the_remedy_named() -> None:
    with pytest.raises(NotFound, match=r"create it with `halfmq admin topic create .+`") as refused:
        await FakeNames().catalog().topic("orders", "topics[2]")
    assert (refused.value.reason, refused.value.field) == ("TOPIC_NOT_FOUND", "topics[2]")


async def test_an_unknown_topic_is_created_where_that_is_switched_on() -> None:
    catalog = FakeNames().catalog(create_topics=True)
    assert (await catalog.topic("orders")).name == "orders"


async def test_of_two_brokers_that_create_a_topic_the_second_finds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    names = FakeNames()

    async def create_topic(name: str, settings: object) -> object:
        names.make_topic(name)
        raise AlreadyExists("there", reason="TOPIC_EXISTS")

    monkeypatch.setattr(names, "create_topic", create_topic)
    assert await names.catalog(create_topics=True).topic("orders") is names.topics["orders"]


async def test_another_topic_of_the_name_is_refused() -> None:
    names = FakeNames("orders")
    catalog = names.catalog()
    before = await catalog.topic("orders")
    assert await catalog.same_topic("orders", before.identity) is before
    after = names.make_topic("orders")
    # The cache still has the one of before, and would answer for it.
    assert await catalog.same_topic("orders", after.identity) is after
    with pytest.raises(Refused) as refused:
        await catalog.same_topic("orders", before.identity)
    assert refused.value.reason == "TOPIC_REPLACED"


async def test_a_group_is_cached_until_it_is_forgotten() -> None:
    names = FakeNames(groups=["billing"])
    catalog = names.catalog()
    await catalog.group("billing")
    await catalog.group("billing")
    assert names.look_ups == ["billing"]
    catalog.forget("billing", ())
    await catalog.group("billing")
    assert names.look_ups == ["billing"] * 2


async def test_an_unknown_group_is_refused_under_the_field_that_named_it() -> None:
    with pytest.raises(NotFound) as refused:
        await FakeNames().catalog().current_group("billing", "consumer_group")
    assert (refused.value.reason, refused.value.field) == ("GROUP_NOT_FOUND", "consumer_group")


async def test_a_group_so_far_is_not_created() -> None:
    """One that could not be created is refused."""
    names = FakeNames(groups=["billing"])
    catalog = names.catalog(create_groups=True)
    assert await catalog.group_so_far("billing") is names.groups["billing"]
    assert (await catalog.group_so_far("readers")).name == "readers"
    assert names.groups.keys() == {"billing"}
    with pytest.raises(InvalidArgument):
        await catalog.group_so_far("two words")
    with pytest.raises(NotFound) as refused:
        await names.catalog().group_so_far("readers")
    assert (refused.value.reason, refused.value.field) == ("GROUP_NOT_FOUND", "consumer_group")


@pytest.mark.parametrize(
    "error", [Moved("group"), Overloaded("There are too many.", retry_after=1.0), StorageUnavailable("Away.")]
)
async def test_what_is_not_created_does_not_count(error: BrokerError, monkeypatch: pytest.MonkeyPatch) -> None:
    names = FakeNames()
    catalog = names.catalog(create_groups=True, client_groups=1)

    async def refused(*_: object, **__: object) -> NoReturn:
        raise error.as_outcome()

    before = CALLER.set(Caller(Principal("alice")))
    try:
        with monkeypatch.context() as refusing:
            for method in ("create_group", "producer_group_id"):
                refusing.setattr(names, method, refused)
            for create in (catalog.group, catalog.producer_group_id):
                with pytest.raises(type(error), match=re.escape(error.message)):
                    await create("readers")
        assert (await catalog.group("readers")).name == "readers"
        with pytest.raises(Overloaded, match="You have made 1 groups"):
            await catalog.group("others")
    finally:
        CALLER.reset(before)


async def test_producer_groups_are_looked_up_once() -> None:
    names = FakeNames()
    catalog = names.catalog()
    assert [await catalog.producer_group_id("shop") for _ in range(2)] == [7, 7]
    assert names.look_ups == ["shop"]


async def test_a_producer_group_is_found_and_not_created() -> None:
    names = FakeNames()
    catalog = names.catalog()
    assert [await catalog.find_producer_group(name) for name in ("bank", "bank", "shop", "shop")] == [None, None, 7, 7]
    assert names.look_ups == ["bank", "bank", "shop"]
    assert await catalog.producer_group_id("shop") == 7
    assert names.look_ups == ["bank", "bank", "shop"]


async def test_groups_that_are_found_or_made_are_known_by_their_numbers_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever settles messages of a new group, or decides for one, does not wait for the next look at all of them."""
    names = FakeNames()

    async def none() -> dict[int, str]:
        return {}

    monkeypatch.setattr(names, "group_names", none, raising=False)
    monkeypatch.setattr(names, "producer_groups", none, raising=False)
    catalog, judges = names.catalog(create_groups=True), Judges()
    judges.replace(Rules([rule_of("user:alice", "group", "*", ["all"])]))
    may = judges.judge(Principal("alice"), Action.SUB, Kind.GROUP)
    for numbered in (catalog.numbered_groups, catalog.numbered_producer_groups):
        assert await numbered.allowed(may) == set()
    group = await catalog.group("billing")
    assert await catalog.numbered_groups.allowed(may) == {group.group_id}
    assert await catalog.producer_group_id("shop") == 7
    assert await catalog.numbered_producer_groups.allowed(may) == {7}


@pytest.mark.parametrize("wanted", [TopicChange(queue_count=0), TopicChange(retention=0), None])
async def test_settings_that_are_not_given_get_their_defaults(wanted: TopicChange | None) -> None:
    assert (await FakeNames().catalog(queue_count=2).create_topic("orders", wanted)).name == "orders"


async def test_settings_out_of_bounds_are_refused_by_name() -> None:
    with pytest.raises(InvalidArgument) as refused:
        await FakeNames().catalog().create_topic("orders", TopicChange(queue_count=100_000))
    assert refused.value.field == "topic.queue_count"
