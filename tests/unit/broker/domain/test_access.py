"""Which rule decides."""

from __future__ import annotations

import random

import pytest

from broker.domain.access import ALL, RIGHTS, Action, Kind, Need, Principal, Rule, Rules, actions_of, rule_of
from broker.errors import InvalidArgument

ALICE = Principal("alice", frozenset({"shop"}), address="10.1.2.3")
PUB = Need(Action.PUB, Kind.TOPIC, "payments.audit")


def allow(subject: str, pattern: str, *actions: str, kind: str = "topic") -> Rule:
    return rule_of(subject, kind, pattern, actions or ["produce"])


def deny(subject: str, pattern: str, *actions: str, kind: str = "topic") -> Rule:
    return rule_of(subject, kind, pattern, actions or ["produce"], allow=False)


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ([], False),
        ([allow("user:alice", "payments.audit")], True),
        ([allow("user:alice", "payments.*")], True),
        ([allow("user:alice", "*")], True),
        ([allow("user:*", "*")], True),
        ([allow("role:shop", "pay*")], True),
        ([allow("user:alice", "*", kind="*")], True),
        # Not about it.
        ([allow("user:bob", "*")], False),
        ([allow("role:bank", "*")], False),
        ([allow("user:shop", "*")], False),
        ([allow("user:alice", "payments")], False),
        ([allow("user:alice", "payments.audit.*")], False),
        ([allow("user:alice", "Payments.*")], False),
        ([allow("user:alice", "*", kind="group")], False),
        ([allow("user:alice", "*", "SUB", "GET", "CREATE")], False),
        # The closest decides, whatever the order.
        ([allow("user:alice", "payments.*"), deny("user:alice", "payments.audit")], False),
        ([deny("user:alice", "payments.*"), allow("user:alice", "payments.audit")], True),
        ([deny("user:alice", "pay*"), allow("user:alice", "payments.*")], True),
        ([deny("user:alice", "*"), allow("user:alice", "p*")], True),
        ([deny("user:alice", "*", kind="*"), allow("user:alice", "*")], True),
        ([deny("user:alice", "payments.audit", kind="*"), allow("user:alice", "*")], False),
        ([deny("user:alice", "payments.audit", kind="*"), allow("user:alice", "payments.audit")], True),
        # Among equals a denial.
        ([allow("user:alice", "p*"), deny("user:alice", "p*")], False),
        ([allow("user:alice", "p*"), deny("role:shop", "p*")], False),
        ([allow("role:shop", "p*"), deny("user:*", "p*")], False),
        # A denial of something else.
        ([allow("user:alice", "p*"), deny("user:alice", "payments.audit", "SUB")], True),
        ([allow("user:alice", "p*"), deny("role:bank", "payments.audit")], True),
    ],
)
def test_the_closest_rule_decides(rules: list[Rule], expected: bool) -> None:
    for order in (rules, rules[::-1]):
        assert Rules(order).allow(ALICE, PUB) is expected


@pytest.mark.parametrize(
    ("sources", "address", "expected"),
    [
        ([], "", True),
        (["10.0.0.0/8"], "10.1.2.3", True),
        (["10.0.0.0/8"], "::ffff:10.1.2.3", True),
        (["10.0.0.0/8"], "11.1.2.3", False),
        (["10.0.0.0/8"], "::1", False),
        (["10.0.0.0/8"], "", False),
        (["10.0.0.0/8"], "not an address", False),
        (["192.168.0.0/16", "2001:db8::/32"], "2001:db8::7", True),
        (["10.1.2.3"], "10.1.2.3", True),
    ],
)
def test_where_a_call_comes_from(sources: list[str], address: str, expected: bool) -> None:
    rules = Rules([rule_of("user:alice", "topic", "*", ["produce"], sources=sources)])
    assert rules.allow(Principal("alice", address=address), PUB) is expected


def test_a_denial_for_some_addresses_leaves_the_others() -> None:
    rules = Rules(
        [
            rule_of("user:alice", "topic", "*", ["produce"]),
            rule_of("user:alice", "topic", "*", ["produce"], allow=False, sources=["10.0.0.0/8"]),
        ]
    )
    assert not rules.allow(ALICE, PUB)
    assert rules.allow(Principal("alice", address="11.0.0.1"), PUB)


def test_a_denial_for_some_addresses_holds_where_the_address_is_not_known() -> None:
    rules = Rules(
        [
            rule_of("user:alice", "topic", "*", ["produce"]),
            rule_of("user:alice", "topic", "*", ["produce"], allow=False, sources=["10.0.0.0/8"]),
        ]
    )
    assert not rules.allow(Principal("alice"), PUB)


def test_rights_are_sets_of_actions() -> None:
    assert actions_of(["produce", "consume"]) == Action.PUB | Action.SUB
    assert actions_of(["check"]) == Action.CHECK | Action.PUB
    assert actions_of(["administer", "produce", "consume", "check"]) == ALL == actions_of(["all"])
    assert actions_of(["pub", "LIST"]) == Action.PUB | Action.LIST
    assert RIGHTS["operate"] in RIGHTS["administer"]
    # RocketMQ's own, of ACL 2.0.
    assert {"PUB", "SUB", "CREATE", "UPDATE", "DELETE", "GET", "LIST"} <= set(Action.__members__)


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("subject", ("alice", "topic", "*", ["produce"])),
        ("subject", ("user:", "topic", "*", ["produce"])),
        ("subject", ("role:*", "topic", "*", ["produce"])),
        ("subject", ("user:" + 251 * "x", "topic", "*", ["produce"])),
        ("kind", ("user:a", "queue", "*", ["produce"])),
        ("pattern", ("user:a", "topic", "", ["produce"])),
        ("pattern", ("user:a", "topic", "a*b", ["produce"])),
        ("pattern", ("user:a", "topic", "**", ["produce"])),
        ("pattern", ("user:a", "topic", 256 * "x", ["produce"])),
        ("actions", ("user:a", "topic", "*", [])),
        ("actions", ("user:a", "topic", "*", ["read"])),
    ],
)
def test_wrong_rules_are_refused_by_field(field: str, given: tuple[str, str, str, list[str]]) -> None:
    with pytest.raises(InvalidArgument) as refused:
        rule_of(*given)
    assert refused.value.field == field


@pytest.mark.parametrize("source", ["10.0.0.1/8", "10.0.0.0/33", "localhost", ""])
def test_wrong_networks_are_refused(source: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        rule_of("user:a", "topic", "*", ["produce"], sources=[source])
    assert refused.value.field == "sources"


def test_against_a_search_of_all_rules() -> None:
    """Random rules: the same as sorting all that fit."""
    choice = random.Random(7)
    names = ["a", "ab", "abc", "b"]
    for _ in range(300):
        rules = [
            Rule(
                choice.choice(["user:alice", "user:*", "role:shop", "user:bob"]),
                choice.choice([None, *Kind]),
                choice.choice([*names, *(f"{name}*" for name in names), "*"]),
                choice.choice([Action.PUB, Action.SUB, ALL]),
                choice.random() < 0.6,
            )
            for _ in range(choice.randrange(8))
        ]
        for kind in Kind:
            need = Need(Action.PUB, kind, choice.choice(names))
            fitting = [
                (not rule.pattern.endswith("*"), len(rule.pattern), rule.kind is not None, not rule.allow)
                for rule in rules
                if rule.subject in {"user:alice", "user:*", "role:shop"}
                and Action.PUB in rule.actions
                and rule.kind in {None, kind}
                and (rule.kind is kind or kind is not Kind.CLUSTER or rule.pattern == "*" or not rule.allow)
                and (rule.pattern == need.name or (rule.pattern[-1] == "*" and need.name.startswith(rule.pattern[:-1])))
            ]
            expected = bool(fitting) and not max(fitting)[-1]
            assert Rules(rules).allow(ALICE, need) is expected
