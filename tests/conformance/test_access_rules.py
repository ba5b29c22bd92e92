"""Access rules in the database."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from broker.domain.access import Action, rule_of

if TYPE_CHECKING:
    from broker.storage.adapters.store import Store
    from conformance.world import World


async def test_rules_are_kept_as_they_were_granted(world: World, store: Store) -> None:
    rules = [
        rule_of("user:alice", "topic", "orders", ["produce", "consume"]),
        rule_of("role:shop", "*", "payments.*", ["all"], sources=["10.0.0.0/8", "2001:db8::/32"]),
        rule_of("user:*", "group", "*", ["check"], allow=False),
        rule_of("user:Alice", "topic", "orders", ["produce"]),
        rule_of("user:über", "sink", "täglich", ["produce"]),
    ]
    granted = [await store.grant(rule, "root") for rule in rules]
    assert [each.rule for each in granted] == rules
    assert {(each.made_at, each.made_by) for each in granted} == {(world.clock.now(), "root")}
    assert await store.access_rules() == granted


async def test_the_same_rule_with_other_actions_is_one(store: Store) -> None:
    first = await store.grant(rule_of("user:alice", "topic", "orders", ["produce"]), "root")
    again = await store.grant(rule_of("user:alice", "topic", "orders", ["produce"]), "other")
    assert again == first
    both = await store.grant(rule_of("user:alice", "topic", "orders", ["consume"]), "other")
    assert both.rule.actions == Action.PUB | Action.SUB
    denied = await store.grant(rule_of("user:alice", "topic", "orders", ["consume"], allow=False), "root")
    near = await store.grant(rule_of("user:alice", "topic", "orders", ["consume"], sources=["10.0.0.0/8"]), "root")
    assert await store.access_rules() == [both, denied, near]


async def test_the_actions_of_a_rule_are_replaced_at_once(store: Store) -> None:
    denying = rule_of("user:alice", "topic", "orders", ["produce", "consume"], allow=False)
    await store.grant(denying, "root")
    other = await store.grant(rule_of("user:alice", "topic", "refunds", ["produce"], allow=False), "root")
    less = await store.grant(rule_of("user:alice", "topic", "orders", ["produce"], allow=False), "other", replace=True)
    assert less.rule.actions == Action.PUB
    assert await store.access_rules() == [other, less]
    new = await store.grant(rule_of("user:bob", "topic", "orders", ["produce"]), "root", replace=True)
    assert await store.access_rules() == [other, less, new]


async def test_every_change_is_told_by_the_state(store: Store) -> None:
    states = [await store.rules_state()]
    made = []
    for name in "abc":
        made.append(await store.grant(rule_of(f"user:{name}", "topic", "orders", ["produce"]), ""))
        states.append(await store.rules_state())
    await store.grant(rule_of("user:a", "topic", "orders", ["consume"]), "")
    states.append(await store.rules_state())
    assert [each.rule_id for each in await store.revoke([made[1].rule_id, 10_000])] == [made[1].rule_id]
    states.append(await store.rules_state())
    # The last one, and another one in its place.
    (*_, last) = await store.access_rules()
    await store.revoke([last.rule_id])
    states.append(await store.rules_state())
    await store.grant(last.rule, "")
    states.append(await store.rules_state())
    assert len(set(states)) == len(states)
    assert await store.revoke([]) == []
    assert await store.rules_state() == states[-1]


async def test_two_brokers_change_rules_at_the_same_time(world: World, store: Store) -> None:
    other = world.broker("b")
    rules = [rule_of(f"user:u{number}", "topic", "orders", ["produce"]) for number in range(10)]
    await asyncio.gather(*((store, other)[number % 2].grant(rule, "") for number, rule in enumerate(rules)))
    same = rule_of("user:same", "topic", "orders", ["produce"])
    await asyncio.gather(*((store, other)[number % 2].grant(same, "") for number in range(6)))
    stored = await other.access_rules()
    assert sorted(each.rule.subject for each in stored) == sorted(rule.subject for rule in (*rules, same))
    assert await store.rules_state() == (max(each.rule_id for each in stored), len(stored))
