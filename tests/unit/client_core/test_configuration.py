"""Configuration as a document: what is compared, refused and planned, without a broker."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from client_core.admin import AccessRule, Compression, ExhaustedPolicy, GroupInfo, GroupMode, Quota, TopicInfo
from client_core.admin.configuration import Document, Found, exported, plan
from client_core.errors import ConfigurationError
from client_core.filters import SqlFilter, TagFilter

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
TOPIC = TopicInfo("orders", 4, timedelta(days=3), 0, timedelta(days=1), 1, NOON, "1-1", Compression.NONE)
GROUP = GroupInfo(
    "shipping",
    GroupMode.CLUSTERING,
    5,
    (timedelta(seconds=1), timedelta(minutes=1)),
    ExhaustedPolicy.DEAD_LETTER,
    "earliest",
    {"orders": TagFilter("paid")},
    None,
    "",
    NOON,
)
RULE = AccessRule(7, "role:shops", ("PUB", "SUB"), "topic", "orders", False, (), NOON, "root")
QUOTA = Quota("acme", topics=20)
FOUND = Found.of([TOPIC, replace(TOPIC, name="%DLQ%shipping")], [GROUP], [RULE], [QUOTA])


def planned(document: Any, *, prune: bool = False, found: Found = FOUND) -> list[tuple[str, str, str]]:
    return [(each.action, each.kind, each.name) for each in plan(Document.read(document), found, prune=prune)]


def refused(document: Any) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as error:
        plan(Document.read(document), FOUND)
    return error.value


def test_what_is_exported_asks_for_no_change() -> None:
    document = exported(FOUND)
    assert list(document) == ["topics", "groups", "rules", "quotas"]
    assert list(document["topics"]) == ["orders"]
    assert planned(document) == planned(document, prune=True) == []


def test_exported_into_an_empty_broker_everything_is_created_in_an_order_that_works() -> None:
    empty = Found.of([], [], [], [])
    assert planned(exported(FOUND), found=empty) == [
        ("create", "topic", "orders"),
        ("create", "group", "shipping"),
        ("create", "filter", "shipping on orders"),
        ("create", "quota", "acme"),
        ("create", "rule", "allow role:shops on topic orders"),
    ]


def test_only_what_differs_is_changed() -> None:
    document = {"topics": {"orders": {"queues": 8, "retention": "72h"}}, "groups": {"shipping": {"max_attempts": 5}}}
    (change,) = plan(Document.read(document), FOUND)
    assert (change.before, change.after) == ({"queues": 4}, {"queues": 8})


@pytest.mark.parametrize("document", [None, {}, {"topics": None, "groups": {}, "rules": None, "quotas": None}])
def test_an_empty_document_changes_nothing(document: Any) -> None:
    assert planned(document) == []


def test_pruning_deletes_what_sections_do_not_name_and_leaves_other_sections() -> None:
    assert planned({"groups": {}}, prune=True) == [("delete", "group", "shipping")]
    assert planned({"topics": {}, "rules": [], "quotas": {}}, prune=True) == [
        ("delete", "quota", "acme"),
        ("delete", "topic", "orders"),
        ("delete", "rule", "allow role:shops on topic orders"),
    ]
    assert planned({"groups": {"shipping": {}}}, prune=True) == []
    assert planned({"groups": {"shipping": {"filters": {}}}}, prune=True) == [
        ("delete", "filter", "shipping on orders")
    ]


def test_a_section_whose_entries_were_commented_out_deletes_nothing() -> None:
    assert planned({"topics": None, "groups": None, "rules": None, "quotas": None}, prune=True) == []
    assert planned({"groups": {"shipping": {"filters": None}}}, prune=True) == []


def test_rules_that_operators_need_are_taken_last() -> None:
    rules = [
        replace(RULE, rule_id=1, subject="role:a-operators", kind="cluster", pattern="*", actions=("UPDATE",)),
        replace(RULE, rule_id=2, subject="role:everything", kind="*", pattern="*", actions=("UPDATE",)),
        replace(RULE, rule_id=3, subject="role:shops"),
    ]
    changes = plan(Document.read({"rules": []}), Found.of([], [], rules, []), prune=True)
    assert [change.content[0] for change in changes] == [3, 1, 2]


def test_rights_are_added_and_taken_only_when_pruning() -> None:
    rule = {"subject": "role:shops", "kind": "topic", "pattern": "orders"}
    assert planned({"rules": [{**rule, "actions": ["produce", "consume"]}]}) == []
    (more,) = plan(Document.read({"rules": [{**rule, "actions": ["GET"]}]}), FOUND)
    assert (more.action, more.after) == ("update", {"actions": ["PUB", "SUB", "GET"]})
    less = {"rules": [{**rule, "actions": ["produce"]}]}
    assert planned(less) == []
    (taken,) = plan(Document.read(less), FOUND, prune=True)
    assert (taken.action, taken.before, taken.after) == ("delete", {"actions": ["PUB", "SUB"]}, {"actions": ["PUB"]})


def test_networks_are_compared_as_networks() -> None:
    stored = replace(RULE, sources=("10.1.0.0/16", "10.2.0.1/32"))
    rule = {
        "subject": "role:shops",
        "kind": "topic",
        "pattern": "orders",
        "actions": ["PUB", "SUB"],
        "sources": ["10.2.0.1", "10.1.2.3/16"],
    }
    assert planned({"rules": [rule]}, found=Found.of([], [], [stored], [])) == []


def test_a_quota_is_set_as_a_whole() -> None:
    (change,) = plan(Document.read({"quotas": {"acme": {"streams": 3}}}), FOUND)
    assert (change.before, change.after) == ({"topics": 20, "streams": 0}, {"topics": 0, "streams": 3})


@pytest.mark.parametrize(
    ("document", "field", "words"),
    [
        ([], "", "mapping"),
        ({"topic": {}}, "topic", "topics, groups, rules, quotas"),
        ({"topics": {"orders": {"queue": 1}}}, "topics.orders.queue", "queues, retention"),
        ({"topics": {"orders": {"queues": 2}}}, "topics.orders.queues", "shrinks from 4 to 2"),
        ({"topics": {"orders": {"queues": True}}}, "topics.orders.queues", "whole number"),
        ({"topics": {"orders": {"priority_levels": 2}}}, "topics.orders.priority_levels", "fixed"),
        ({"topics": {"a b": {}}}, "topics.a b", "characters"),
        ({"topics": {7: {}}}, "topics", "quotation marks"),
        ({"topics": {"%DLQ%x": {}}}, "topics.%DLQ%x", "leave it out"),
        ({"topics": {"x": {"compression": "gzip"}}}, "topics.x.compression", "none or zstd"),
        ({"groups": {"shipping": {"mode": "broadcasting"}}}, "groups.shipping.mode", "fixed"),
        ({"groups": {"shipping": {"start": "latest"}}}, "groups.shipping.start", "from earliest to latest"),
        ({"groups": {"x": {"start": "noon"}}}, "groups.x.start", "earliest, latest"),
        ({"groups": {"x": {"retry_delays": []}}}, "groups.x.retry_delays", "list of durations"),
        ({"groups": {"x": {"retry_delays": ["1s", "y"]}}}, "groups.x.retry_delays[1]", "duration"),
        ({"groups": {"x": {"filters": {"nowhere": {"tags": "a"}}}}}, "groups.x.filters.nowhere", "no topic"),
        ({"groups": {"x": {"filters": {"orders": {"tags": "a", "sql": "b"}}}}}, "groups.x.filters.orders", "either"),
        ({"groups": {"x": {"filters": {"orders": {"tags": "a|b"}}}}}, "groups.x.filters.orders", "tags"),
        ({"rules": {}}, "rules", "list of rules"),
        ({"rules": [{"subject": "role:x"}]}, "rules[0].actions", "missing"),
        ({"rules": [{"subject": "x", "actions": ["all"], "kind": "*", "pattern": "*"}]}, "rules[0].subject", "user:"),
        ({"quotas": {"acme": {"topics": -1}}}, "quotas.acme.topics", "0 or more"),
        ({"quotas": {"acme": {}}}, "quotas.acme", "no limit"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_with_its_place_and_the_remedy(document: Any, field: str, words: str) -> None:
    error = refused(document)
    assert error.field == field
    assert words in str(error)


def test_a_rule_that_is_there_twice_is_refused() -> None:
    rule = {"subject": "role:x", "actions": ["PUB"], "kind": "topic", "pattern": "a"}
    assert refused({"rules": [rule, {**rule, "actions": ["SUB"]}]}).field == "rules[1]"


def test_filters_of_both_kinds_are_compared() -> None:
    document = {"groups": {"shipping": {"filters": {"orders": {"sql": "amount > 1"}}}}}
    (change,) = plan(Document.read(document), FOUND)
    assert change.after == {"filter": {"sql": "amount > 1"}}
    again = Found.of([TOPIC], [replace(GROUP, filters={"orders": SqlFilter("amount > 1")})], [], [])
    assert planned(document, found=again) == []
