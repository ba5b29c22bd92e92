"""`halfmq admin config export` and `apply`: the configuration as a file, applied as often as one likes."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
import yaml

from producer_sdk import Admin, ConfigurationError
from support.admin_command import AdminCommand
from support.brokers import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FILE = """\
topics:
  orders: {queues: 4, retention: 7d, compression: zstd}
  refunds:
groups:
  shipping:
    max_attempts: 5
    retry_delays: [1s, 10s, 1m30s]
    start: 2026-01-31T08:30:00Z
    filters:
      orders: {tags: paid || refunded}
      refunds: {sql: "amount > 100"}
  news: {mode: broadcasting}
rules:
  - {subject: "role:shops", actions: [produce], kind: topic, pattern: orders}
  - {subject: "user:*", actions: [GET, LIST], kind: "*", pattern: "acme%*", deny: true, sources: [10.1.0.0/16]}
quotas:
  acme: {messages_per_second: 1000, topics: 20}
"""


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[list[AdminCommand]]:
    """Commands for two brokers, each with an empty database."""
    with (
        BrokerProcess(f"sqlite:///{tmp_path / 'one.db'}") as one,
        BrokerProcess(f"sqlite:///{tmp_path / 'other.db'}") as other,
    ):
        yield [AdminCommand(each.endpoint, tmp_path) for each in (one, other)]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdminCommand]:
    folder = tmp_path_factory.mktemp("broker")
    with BrokerProcess(f"sqlite:///{folder / 'try.db'}") as broker:
        made = AdminCommand(broker.endpoint, folder)
        made.done("topic", "create", "orders", "--queues", 4, "--priorities", 2)
        made.done("group", "create", "shipping", "--start", "latest")
        yield made


def written(folder: Path, text: str) -> Path:
    file = folder / "halfmq.yaml"
    file.write_text(text)
    return file


_LAUGHS = "".join(f"{name}: &{name} [" + ",".join([f"*{below}"] * 9) + "]\n" for below, name in pairwise("abcdefgh"))


def test_a_file_is_applied_once_and_exported_as_it_is(brokers: list[AdminCommand], tmp_path: Path) -> None:
    one, other = brokers
    file = written(tmp_path, FILE)
    dry = one.done("apply", file, "--dry-run")
    assert "+ topic orders: queues 4, retention 7d, compression zstd" in dry.lines
    assert "+ filter shipping on orders: filter tags 'paid || refunded'" in dry.lines
    assert dry.lines[-1] == "9 changes to make: 9 created"
    assert one.found("topic", "list") == []
    assert one.done("apply", file).lines[-1] == "9 changes made: 9 created"
    assert one.done("apply", file).lines == ["nothing to change"]
    assert one.found("apply", file) == []
    exported = tmp_path / "exported.yaml"
    one.done("config", "export", "--output", exported)
    document = yaml.safe_load(exported.read_text())
    assert document["topics"]["orders"]["retention"] == "7d"
    assert document["groups"]["shipping"]["filters"]["refunds"] == {"sql": "amount > 100"}
    assert document["groups"]["shipping"]["start"] == "2026-01-31T08:30:00Z"
    assert [rule.get("deny", False) for rule in document["rules"]] == [False, True]
    assert document["quotas"] == {"acme": {"messages_per_second": 1000, "topics": 20}}
    assert one.done("apply", exported).lines == ["nothing to change"]
    other.done("apply", exported)
    assert other.done("config", "export").output == exported.read_text()
    assert other.done("apply", exported, "--prune").lines == ["nothing to change"]


def test_what_is_deleted_is_shown_and_asked_for(brokers: list[AdminCommand], tmp_path: Path) -> None:
    one, _ = brokers
    one.done("apply", written(tmp_path, FILE))
    less = written(
        tmp_path,
        "topics: {orders: }\n"
        "groups: {shipping: {filters: {orders: {tags: paid}}}}\n"
        'rules:\n  - {subject: "user:*", actions: [LIST], kind: "*", pattern: "acme%*", deny: true,'
        " sources: [10.1.0.0/16]}\n",
    )
    assert one.done("apply", less).lines == [
        "~ filter shipping on orders: filter tags 'paid || refunded' -> tags 'paid'",
        "1 change made: 1 changed",
    ]
    asked = one("apply", less, "--prune")
    assert asked.status == 2
    assert "of which 5 delete something" in asked.errors
    assert asked.lines == [
        "- filter shipping on refunds: filter sql 'amount > 100'",
        "- group news",
        "- topic refunds",
        "- rule allow role:shops on topic orders: actions [PUB]",
        "- rule deny user:* on * acme%* from 10.1.0.0/16: actions [GET, LIST] -> [LIST]",
    ]
    assert one.done("apply", less, "--prune", "--yes").lines[-1] == "5 changes made: 5 deleted"
    assert one.done("apply", less, "--prune").lines == ["nothing to change"]
    # A section that the file does not have stays as it is.
    assert [quota["tenant"] for quota in one.found("access", "quotas")] == ["acme"]
    (rule,) = one.found("access", "rules")
    assert rule["actions"] == ["LIST"]


def test_what_somebody_else_has_done_meanwhile_is_no_obstacle(shared: AdminCommand) -> None:
    with Admin(shared.variables["HALFMQ_ENDPOINT"]) as admin:
        admin.create_topic("gone")
        document = admin.export_configuration(rights=False)
        document["topics"] |= {"overtaken": {"queues": 3, "retention": "1h"}, "behind": {}}
        document["groups"]["overtaken"] = {"max_attempts": 3}
        del document["topics"]["gone"]
        changes = admin.plan_configuration(document, prune=True)
        admin.create_topic("overtaken", queues=1)
        admin.create_group("overtaken")
        admin.delete_topic("gone")
        assert list(admin.apply_changes(changes)) == changes
        assert admin.get_topic("overtaken").queues == 3
        assert admin.get_group("overtaken").max_attempts == 3
        assert admin.apply_configuration(document, prune=True) == []
        for topic in ("overtaken", "behind"):
            admin.delete_topic(topic)
        admin.delete_group("overtaken")
        (change,) = admin.plan_configuration({"topics": {"fixed": {"priority_levels": 3}}})
        admin.create_topic("fixed")
        with pytest.raises(ConfigurationError, match="from 1 to 3, but is fixed") as refused:
            list(admin.apply_changes([change]))
        assert refused.value.field == "topics.fixed.priority_levels"
        admin.delete_topic("fixed")


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("topics:\n  orders:\n    quues: 4\n", "3:5", ("topics.orders.quues", "queues, retention")),
        ("topics: {orders: {queues: 2}}\n", "1:19", ("topics.orders.queues", "shrinks from 4 to 2")),
        ("topics: {orders: {priority_levels: 3}}\n", "1:19", ("priority_levels", "from 2 to 3", "fixed")),
        ("groups:\n  shipping: {mode: broadcasting}\n", "2:14", ("groups.shipping.mode", "fixed")),
        ("groups:\n  shipping: {start: earliest}\n", "2:14", ("groups.shipping.start", "seek")),
        ("groups:\n  shipping: {filters: {nowhere: {tags: x}}}\n", "2:24", ("filters.nowhere", "is no topic")),
        ("topics:\n  '%DLQ%shipping':\n", "2:3", ("dead letters",)),
        ("topics: {new: {retention: soon}}\n", "1:16", ("topics.new.retention", "such as 30s")),
        ("rules:\n  - {subject: role:x, actions: [fly], kind: topic, pattern: x}\n", "2:23", ("produce", "'fly'")),
        ("rules:\n  - {subject: role:x, actions: [PUB], kind: topic}\n", "2:5", ("rules[0].pattern", "is missing")),
        ("queues: {}\n", "1:1", ("topics, groups, rules, quotas",)),
        ("topics: {a: , a: }\n", "1:15", ("topics.a", "twice")),
        ("topics: {\n", "3:1", ()),
        ("groups: {new: {start: 2026-02-30T00:00:00Z}}\n", "", ("cannot read", "day")),
        ("topics: {a: {queues: " + "7" * 5000 + "}}\n", "", ("cannot read",)),
        ("topics: {a: {queues: !!int ''}}\n", "", ("cannot read",)),
        ("a: &a [1,1,1,1,1,1,1,1,1]\n" + _LAUGHS, "", ("more than",)),
    ],
    ids=lambda part: part.replace("\n", " ")[:40] if isinstance(part, str) else "",
)
def test_what_cannot_be_is_refused_at_its_place_before_anything_is_changed(
    shared: AdminCommand, tmp_path: Path, text: str, place: str, words: tuple[str, ...]
) -> None:
    before = shared.done("config", "export").output
    # What could be done comes first, and is not done either.
    first = "quotas: {acme: {topics: 1}}\n" if not text.startswith("quotas") else ""
    file = written(tmp_path, text + first)
    shared("apply", file).refused(2, f"{file}:{place}: " if place else f"{file}: ", *words)
    assert shared.done("config", "export").output == before


def test_the_sdk_reads_and_applies_the_same_documents(shared: AdminCommand) -> None:
    with Admin(shared.variables["HALFMQ_ENDPOINT"]) as admin:
        document = admin.export_configuration(rights=False)
        assert set(document) == {"topics", "groups"}
        assert admin.apply_configuration(document, prune=True) == []
        document["topics"]["orders"]["retention"] = 3600
        (planned,) = admin.apply_configuration(document, dry_run=True)
        assert (planned.action, planned.kind, planned.name) == ("update", "topic", "orders")
        assert (planned.before, planned.after) == ({"retention": "3d"}, {"retention": "1h"})
        assert admin.plan_configuration(document) == [planned]
        assert list(admin.apply_changes([planned])) == [planned]
        assert admin.apply_configuration(document) == []
        with pytest.raises(ConfigurationError) as refused:
            admin.apply_configuration({"topics": {"orders": {"queues": "many"}}})
        assert refused.value.field == "topics.orders.queues"
