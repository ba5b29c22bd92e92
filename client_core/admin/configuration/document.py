"""Reads a document, and refuses what it cannot mean before anything is changed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from client_core.admin.configuration.values import (
    as_choice,
    as_count,
    as_filter,
    as_flag,
    as_mapping,
    as_name,
    as_network,
    as_number,
    as_span,
    as_spans,
    as_start,
    as_text,
    refuse,
    with_known_keys,
)
from client_core.admin.groups import ExhaustedPolicy, GroupMode
from client_core.admin.topics import Compression

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from client_core.admin.access import AccessRule

__all__ = ["DEAD_LETTERS", "GROUP_SETTINGS", "QUOTA_LIMITS", "TOPIC_SETTINGS", "Document", "RuleSettings"]

DEAD_LETTERS = "%DLQ%"
"""What names of dead letter topics begin with; brokers make them."""
_LONGEST_TOPIC, _LONGEST_GROUP = 127, 120

TOPIC_SETTINGS: Mapping[str, Callable[[str, Any], Any]] = {
    "queues": as_count,
    "retention": as_span,
    "retention_bytes": as_number,
    "dedup_window": as_span,
    "priority_levels": as_count,
    "compression": partial(as_choice, kind=Compression),
}
"""Settings of a topic, and how each is read."""
GROUP_SETTINGS: Mapping[str, Callable[[str, Any], Any]] = {
    "mode": partial(as_choice, kind=GroupMode),
    "start": as_start,
    "max_attempts": as_count,
    "retry_delays": as_spans,
    "when_exhausted": partial(as_choice, kind=ExhaustedPolicy),
    "keep_unread": as_flag,
    "fifo": as_flag,
}
"""Settings of a group, and how each is read."""
QUOTA_LIMITS: Mapping[str, Callable[[str, Any], Any]] = dict.fromkeys(
    (
        "messages_per_second",
        "bytes_per_second",
        "topics",
        "groups",
        "retained_bytes",
        "streams",
        "pending_transactions",
    ),
    as_number,
)
"""Limits of a quota, and how each is read."""
_ACTIONS = ("PUB", "SUB", "CHECK", "OPERATE", "CREATE", "UPDATE", "DELETE", "GET", "LIST")
# Those of broker/domain/access.py; a broker answers with actions.
_RIGHTS = {
    "produce": ("PUB",),
    "consume": ("SUB",),
    "check": ("PUB", "CHECK"),
    "operate": ("OPERATE", "GET", "LIST"),
    "administer": _ACTIONS[3:],
    "all": _ACTIONS,
}


@dataclass(frozen=True, slots=True)
class RuleSettings:
    """A rule without its number.

    Attributes:
        subject: Whom it is about.
        kind: Kind of the resource.
        pattern: Its name or the beginning of names.
        deny: Whether it denies.
        sources: Networks, sorted.
        actions: Actions, in the order of the protocol.
    """

    subject: str
    kind: str
    pattern: str
    deny: bool
    sources: tuple[str, ...]
    actions: tuple[str, ...]

    @property
    def key(self) -> tuple[str, str, str, bool, tuple[str, ...]]:
        """What no two rules have in common."""
        return self.subject, self.kind, self.pattern, self.deny, self.sources

    @property
    def name(self) -> str:
        """The rule as people name it."""
        sources = f" from {','.join(self.sources)}" if self.sources else ""
        return f"{'deny' if self.deny else 'allow'} {self.subject} on {self.kind} {self.pattern}{sources}"

    @classmethod
    def of(cls, rule: AccessRule) -> RuleSettings:
        """The settings of a rule that a broker has."""
        return cls(rule.subject, rule.kind or "*", rule.pattern, rule.deny, tuple(sorted(rule.sources)), rule.actions)

    def written(self) -> dict[str, Any]:
        """As a document has it."""
        found: dict[str, Any] = {
            "subject": self.subject,
            "actions": list(self.actions),
            "kind": self.kind,
            "pattern": self.pattern,
        }
        if self.deny:
            found["deny"] = True
        if self.sources:
            found["sources"] = list(self.sources)
        return found


@dataclass(frozen=True, slots=True)
class Document:
    """What a document asks for; a section that it does not have is None.

    Attributes:
        topics: Settings by topic.
        groups: Settings by group.
        filters: By group, its filters by topic; groups without the key are not in it.
        rules: The rules.
        quotas: Limits by tenant; those that are not named are 0.
    """

    topics: Mapping[str, Mapping[str, Any]] | None = None
    groups: Mapping[str, Mapping[str, Any]] | None = None
    filters: Mapping[str, Mapping[str, Any]] | None = None
    rules: tuple[RuleSettings, ...] | None = None
    quotas: Mapping[str, Mapping[str, int]] | None = None

    @classmethod
    def read(cls, content: object) -> Document:
        """Reads a document.

        Args:
            content: What YAML or JSON holds: mappings, lists, texts, numbers. A section with nothing in it, whose
                entries may have been commented out, is none: to ask for no entry it has to be ``{}`` or ``[]``.

        Raises:
            ConfigurationError: Something in it is not known, or has a wrong value; its field says where.
        """
        if isinstance(content, dict):
            content = {key: section for key, section in content.items() if section is not None}
        found = with_known_keys("", content, {"topics": _topics, "groups": _groups, "rules": _rules, "quotas": _quotas})
        groups, filters = found.pop("groups", (None, None))
        return cls(groups=groups, filters=filters, **found)


def _topics(place: str, value: object) -> dict[str, dict[str, Any]]:
    found = {}
    for name, settings in as_mapping(place, value).items():
        where = f"{place}.{name}"
        as_name(where, name, _LONGEST_TOPIC)
        if name.startswith(DEAD_LETTERS):
            refuse(where, "is a topic of dead letters, which brokers make; leave it out")
        found[name] = with_known_keys(where, settings, TOPIC_SETTINGS)
    return found


def _groups(place: str, value: object) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    groups, filters = {}, {}
    known = {**GROUP_SETTINGS, "filters": _filters}
    for name, settings in as_mapping(place, value).items():
        as_name(f"{place}.{name}", name, _LONGEST_GROUP)
        found = with_known_keys(f"{place}.{name}", settings, known)
        wanted = found.pop("filters", None)
        if wanted is not None:
            filters[name] = wanted
        groups[name] = found
    return groups, filters


def _filters(place: str, value: object) -> dict[str, Any] | None:
    if value is None:
        return None
    return {
        as_name(f"{place}.{topic}", topic, _LONGEST_TOPIC): as_filter(f"{place}.{topic}", wanted)
        for topic, wanted in as_mapping(place, value).items()
    }


def _rules(place: str, value: object) -> tuple[RuleSettings, ...]:
    if not isinstance(value, list):
        refuse(place, "is a list of rules, each of which begins with '- subject: ...'")
    found: dict[object, RuleSettings] = {}
    for number, each in enumerate(value):
        rule = _rule(f"{place}[{number}]", each)
        if rule.key in found:
            refuse(f"{place}[{number}]", "is there twice: one rule has all actions")
        found[rule.key] = rule
    return tuple(found.values())


def _rule(place: str, value: object) -> RuleSettings:
    known: dict[str, Callable[[str, Any], Any]] = {
        "subject": as_text,
        "actions": _actions,
        "kind": _kind,
        "pattern": as_text,
        "deny": as_flag,
        "sources": _sources,
    }
    found = with_known_keys(place, value, known)
    for name in ("subject", "actions", "kind", "pattern"):
        if name not in found:
            refuse(f"{place}.{name}", "is missing")
    if not found["subject"].startswith(("user:", "role:")):
        refuse(f"{place}.subject", f"is user:NAME, user:* or role:NAME, not {found['subject']!r}")
    return RuleSettings(
        found["subject"],
        found["kind"],
        found["pattern"],
        found.get("deny", False),
        found.get("sources", ()),
        found["actions"],
    )


def _kind(place: str, value: object) -> str:
    if value not in {"topic", "group", "sink", "cluster", "*"}:
        refuse(place, f"is topic, group, sink, cluster or '*', not {value!r}")
    return str(value)


def _actions(place: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        refuse(place, f"is a list of rights or actions, such as [produce], not {value!r}")
    found: set[str] = set()
    for each in value:
        if each in _RIGHTS:
            found.update(_RIGHTS[each])
        elif each in _ACTIONS:
            found.add(each)
        else:
            refuse(place, f"has {each!r}; there are the rights {', '.join(_RIGHTS)}, and {', '.join(_ACTIONS)}")
    return tuple(action for action in _ACTIONS if action in found)


def _sources(place: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        refuse(place, f"is a list of networks such as ['10.1.0.0/16'], not {value!r}")
    return tuple(sorted(as_network(f"{place}[{number}]", each) for number, each in enumerate(value)))


def _quotas(place: str, value: object) -> dict[str, dict[str, int]]:
    found = {}
    for tenant, limits in as_mapping(place, value).items():
        read = with_known_keys(f"{place}.{tenant}", limits, QUOTA_LIMITS)
        found[tenant] = {name: read.get(name, 0) for name in QUOTA_LIMITS}
        if not any(found[tenant].values()):
            refuse(f"{place}.{tenant}", "has no limit: leave the tenant out, and prune to remove its quota")
    return found
