from __future__ import annotations

import pytest

from broker.domain.access import Action, Kind, Need, Principal, Rules, rule_of
from broker.domain.tenancy import LARGEST_LIMIT, Quota, is_tenant, tenant_of
from broker.errors import InvalidArgument


@pytest.mark.parametrize(
    ("name", "tenant"),
    [
        ("orders", ""),
        ("acme%orders", "acme"),
        ("%DLQ%acme%shop", "acme"),
        ("%DLQ%shop", ""),
        ("acme%a%b", "acme"),
        ("%orders", ""),
        ("acmeorders%", "acmeorders"),
        ("", ""),
    ],
)
def test_the_tenant_of_a_name(name: str, tenant: str) -> None:
    assert tenant_of(name) == tenant


def test_names_of_tenants() -> None:
    assert all(map(is_tenant, ("a", "acme", "acme-2_x", "A" * 40)))
    assert not any(map(is_tenant, ("", "a%b", "a.b", "ä", "a b", "A" * 41, "*", "a\n")))


def test_who_has_a_tenant_may_do_nothing_outside_of_it() -> None:
    rules = Rules([rule_of("user:*", "*", "*", ["all"]), rule_of("user:root", "*", "*", ["all"])])
    acme, root = Principal("shop", tenant="acme"), Principal("root")
    inside = ["acme%orders", "%DLQ%acme%shop"]
    outside = ["orders", "globex%orders", "%DLQ%globex%shop", "%DLQ%shop", "acme", "acme2%orders", "*", ""]
    for name in inside:
        assert rules.allow(acme, Need(Action.PUB, Kind.TOPIC, name))
    for name in outside:
        assert not rules.allow(acme, Need(Action.PUB, Kind.TOPIC, name))
    for name in (*inside, *outside):
        assert not rules.allow(acme, Need(Action.GET, Kind.CLUSTER, name))
        assert rules.allow(root, Need(Action.PUB, Kind.TOPIC, name))


def test_inside_of_a_tenant_the_rules_decide() -> None:
    rules = Rules([rule_of("user:shop", "topic", "acme%orders*", ["produce"])])
    acme = Principal("shop", tenant="acme")
    assert rules.allow(acme, Need(Action.PUB, Kind.TOPIC, "acme%orders-2"))
    assert not rules.allow(acme, Need(Action.PUB, Kind.TOPIC, "acme%payments"))
    assert not rules.allow(acme, Need(Action.SUB, Kind.TOPIC, "acme%orders-2"))


@pytest.mark.parametrize(
    ("quota", "field"),
    [
        (Quota("a%b"), "quota.tenant"),
        (Quota(""), "quota.tenant"),
        (Quota("acme", topics=-1), "quota.topics"),
        (Quota("acme", streams=LARGEST_LIMIT + 1), "quota.streams"),
    ],
)
def test_a_quota_that_is_wrong(quota: Quota, field: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        quota.check()
    assert refused.value.field == field


def test_a_quota_that_is_right() -> None:
    Quota("*").check()
    Quota("acme", 1, 2, 3, 4, 5, 6, LARGEST_LIMIT).check()
