"""Compares a document with what brokers have: the changes that it asks for, in the order in which they are made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from client_core.admin.configuration.changes import ConfigurationChange
from client_core.admin.configuration.document import QUOTA_LIMITS
from client_core.admin.configuration.values import refuse, written

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from client_core.admin.configuration.document import Document
    from client_core.admin.configuration.exporting import Found

__all__ = ["changed_settings", "plan"]

_FIXED = {
    "priority_levels": "is fixed when a topic is created",
    "mode": "is fixed when a group is created",
    "start": "is fixed when a group is created; seek moves a group",
}


def plan(wanted: Document, found: Found, *, prune: bool = False) -> list[ConfigurationChange]:
    """The changes that lead from what brokers have to what the document asks for.

    Args:
        wanted: What the document asks for.
        found: What brokers have.
        prune: Delete what the document's sections do not name.

    Raises:
        ConfigurationError: A change is impossible; its field says where the document asks for it.
    """
    changes = [*_topics(wanted, found), *_groups(wanted, found), *_filters(wanted, found)]
    changes += [*_quotas(wanted, found), *_rules(wanted, found)]
    if prune:
        changes += [*_pruned(wanted, found), *_pruned_rules(wanted, found)]
    return changes


def _topics(wanted: Document, found: Found) -> Iterator[ConfigurationChange]:
    for name, settings in (wanted.topics or {}).items():
        if name not in found.topics:
            yield ConfigurationChange("create", "topic", name, {}, _written(settings), settings)
            continue
        changed = changed_settings(f"topics.{name}", settings, found.topics[name])
        if changed.get("queues", 0) and changed["queues"] < found.topics[name].queues:
            rule = f"shrinks from {found.topics[name].queues} to {changed['queues']}: queues can only be added"
            refuse(f"topics.{name}.queues", rule)
        if changed:
            yield _update("topic", name, changed, found.topics[name])


def _groups(wanted: Document, found: Found) -> Iterator[ConfigurationChange]:
    for name, settings in (wanted.groups or {}).items():
        if name not in found.groups:
            yield ConfigurationChange("create", "group", name, {}, _written(settings), settings)
            continue
        changed = changed_settings(f"groups.{name}", settings, found.groups[name])
        if changed:
            yield _update("group", name, changed, found.groups[name])


def _filters(wanted: Document, found: Found) -> Iterator[ConfigurationChange]:
    for group, filters in (wanted.filters or {}).items():
        present = found.groups[group].filters if group in found.groups else {}
        for topic, each in filters.items():
            if topic not in found.topics and topic not in (wanted.topics or {}):
                refuse(f"groups.{group}.filters.{topic}", "is no topic: create it here, below topics, or before")
            if present.get(topic) == each:
                continue
            before = {"filter": written(present[topic])} if topic in present else {}
            yield ConfigurationChange(
                "update" if before else "create",
                "filter",
                f"{group} on {topic}",
                before,
                {"filter": written(each)},
                (group, topic, each),
            )


def _quotas(wanted: Document, found: Found) -> Iterator[ConfigurationChange]:
    for tenant, limits in (wanted.quotas or {}).items():
        quota = found.quotas.get(tenant)
        before = {} if quota is None else {name: getattr(quota, name) for name in QUOTA_LIMITS}
        if before == limits:
            continue
        changed = [name for name in QUOTA_LIMITS if before.get(name, 0) != limits[name]]
        yield ConfigurationChange(
            "create" if quota is None else "update",
            "quota",
            tenant,
            {name: before[name] for name in changed if before},
            {name: limits[name] for name in changed},
            limits,
        )


def _rules(wanted: Document, found: Found) -> Iterator[ConfigurationChange]:
    present = {rule.key: rule for rule, _ in found.rules}
    for rule in wanted.rules or ():
        before = present.get(rule.key)
        if before is None:
            yield ConfigurationChange("create", "rule", rule.name, {}, {"actions": list(rule.actions)}, rule)
        elif not set(rule.actions) <= set(before.actions):
            together = [*before.actions, *(action for action in rule.actions if action not in before.actions)]
            yield ConfigurationChange(
                "update", "rule", rule.name, {"actions": list(before.actions)}, {"actions": together}, rule
            )


def _pruned(wanted: Document, found: Found) -> Iterator[ConfigurationChange]:
    for group, filters in (wanted.filters or {}).items():
        for topic, each in found.groups[group].filters.items() if group in found.groups else ():
            if topic not in filters:
                before = {"filter": written(each)}
                yield ConfigurationChange("delete", "filter", f"{group} on {topic}", before, {}, (group, topic, None))
    for tenant, quota in found.quotas.items():
        if wanted.quotas is not None and tenant not in wanted.quotas:
            before = {name: value for name in QUOTA_LIMITS if (value := getattr(quota, name))}
            yield ConfigurationChange("delete", "quota", tenant, before, {})
    for name in found.groups:
        if wanted.groups is not None and name not in wanted.groups:
            yield ConfigurationChange("delete", "group", name, {}, {})
    for name in found.topics:
        if wanted.topics is not None and name not in wanted.topics:
            yield ConfigurationChange("delete", "topic", name, {}, {})


def _pruned_rules(wanted: Document, found: Found) -> Iterator[ConfigurationChange]:
    """The last changes: they may take away the rights for others."""
    if wanted.rules is None:
        return
    kept = {rule.key: rule for rule in wanted.rules}
    # Rules by which operators may change rules come last: without its own the caller could not go on.
    for rule, stored in sorted(found.rules, key=lambda pair: not pair[0].deny and pair[0].kind in {"cluster", "*"}):
        before = {"actions": list(rule.actions)}
        if rule.key not in kept:
            yield ConfigurationChange("delete", "rule", rule.name, before, {}, (stored.rule_id, None))
        elif not set(rule.actions) <= set(kept[rule.key].actions):
            less = kept[rule.key]
            yield ConfigurationChange(
                "delete", "rule", rule.name, before, {"actions": list(less.actions)}, (stored.rule_id, less)
            )


def changed_settings(place: str, settings: Mapping[str, Any], present: Any) -> dict[str, Any]:
    """Settings that differ from those that are there.

    Raises:
        ConfigurationError: One of them cannot be changed.
    """
    changed = {name: value for name, value in settings.items() if value != getattr(present, name)}
    for name, value in changed.items():
        if name in _FIXED:
            before, after = written(getattr(present, name)), written(value)
            refuse(f"{place}.{name}", f"would change from {before} to {after}, but {_FIXED[name]}")
    return changed


def _update(kind: Any, name: str, changed: Mapping[str, Any], present: Any) -> ConfigurationChange:
    before = {setting: written(getattr(present, setting)) for setting in changed}
    return ConfigurationChange("update", kind, name, before, _written(changed), changed)


def _written(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: written(value) for name, value in settings.items()}
