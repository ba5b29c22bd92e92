"""What brokers have, and the document that asks for the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from client_core.admin.configuration.document import (
    DEAD_LETTERS,
    GROUP_SETTINGS,
    QUOTA_LIMITS,
    TOPIC_SETTINGS,
    RuleSettings,
)
from client_core.admin.configuration.values import written

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from client_core.admin.access import AccessRule, Quota
    from client_core.admin.groups import GroupInfo
    from client_core.admin.topics import TopicInfo

__all__ = ["Found", "exported"]


@dataclass(frozen=True, slots=True)
class Found:
    """What brokers have.

    Attributes:
        topics: Topics by name, without those of dead letters.
        groups: Groups by name.
        rules: Rules, sorted; empty where they were not asked for.
        quotas: Quotas by tenant; empty where they were not asked for.
    """

    topics: Mapping[str, TopicInfo]
    groups: Mapping[str, GroupInfo]
    rules: tuple[tuple[RuleSettings, AccessRule], ...]
    quotas: Mapping[str, Quota]

    @classmethod
    def of(
        cls,
        topics: Iterable[TopicInfo],
        groups: Iterable[GroupInfo],
        rules: Iterable[AccessRule],
        quotas: Iterable[Quota],
    ) -> Found:
        """Sorts what was found."""
        by_key = sorted(((RuleSettings.of(rule), rule) for rule in rules), key=lambda pair: pair[0].key)
        return cls(
            {topic.name: topic for topic in topics if not topic.name.startswith(DEAD_LETTERS)},
            {group.name: group for group in groups},
            tuple(by_key),
            {quota.tenant: quota for quota in quotas},
        )


def exported(found: Found) -> dict[str, Any]:
    """The document that asks for what was found."""
    return {
        "topics": {
            name: {setting: written(getattr(topic, setting)) for setting in TOPIC_SETTINGS}
            for name, topic in sorted(found.topics.items())
        },
        "groups": {name: _group(group) for name, group in sorted(found.groups.items())},
        "rules": [rule.written() for rule, _ in found.rules],
        "quotas": {
            tenant: {limit: value for limit in QUOTA_LIMITS if (value := getattr(quota, limit))}
            for tenant, quota in sorted(found.quotas.items())
        },
    }


def _group(group: GroupInfo) -> dict[str, Any]:
    settings = {
        setting: written(getattr(group, setting)) for setting in GROUP_SETTINGS if getattr(group, setting) is not None
    }
    if group.filters:
        settings["filters"] = {topic: written(wanted) for topic, wanted in sorted(group.filters.items())}
    return settings
