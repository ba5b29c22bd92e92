"""Who may do what: principals, resources, actions, and the rule that decides.

The most closely fitting rule decides: one that names the resource before one with a prefix of its name, a longer
prefix before a shorter one, and all before `*`; then one that names its kind. Among equally close ones a denial
decides. Without a fitting rule the answer is no. RocketMQ's ACL 2.0 (https://rocketmq.apache.org/docs/domainModel/) has
the same semantics, but looks at the kind first, so that `deny * secret` would not lock a topic of that name.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Flag, StrEnum, auto
from functools import reduce
from ipaddress import ip_address, ip_network
from operator import or_
from typing import TYPE_CHECKING, NamedTuple

from broker.domain.tenancy import tenant_of
from broker.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

LONGEST_SUBJECT = 255
LONGEST_PATTERN = 255
ANY = "*"


class Action(Flag):
    """What can be done with a resource; sets of them are joined with `|`."""

    PUB = auto()
    SUB = auto()
    CHECK = auto()
    OPERATE = auto()
    CREATE = auto()
    UPDATE = auto()
    DELETE = auto()
    GET = auto()
    LIST = auto()


ALL = reduce(or_, Action)
RIGHTS: Mapping[str, Action] = {
    "produce": Action.PUB,
    "consume": Action.SUB,
    "check": Action.CHECK | Action.PUB,
    "operate": Action.OPERATE | Action.GET | Action.LIST,
    "administer": ALL & ~(Action.PUB | Action.SUB | Action.CHECK),
    "all": ALL,
}
"""Names for sets of actions."""


class Kind(StrEnum):
    """Kinds of resources; a group is one of consumers or of producers."""

    TOPIC = "topic"
    GROUP = "group"
    SINK = "sink"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class Principal:
    """Who makes a call, as far as access goes.

    Attributes:
        name: unique among all principals.
        roles: what rules may name instead of it.
        tenant: whose names it sees; empty: those without a tenant.
        address: where the call came from; empty if unknown.
    """

    name: str
    roles: frozenset[str] = frozenset()
    tenant: str = ""
    address: str = ""

    @property
    def subjects(self) -> frozenset[str]:
        """What rules for it are kept under; nobody is known by an empty name."""
        if not self.name:
            return frozenset()
        return frozenset({f"user:{self.name}", f"user:{ANY}", *(f"role:{role}" for role in self.roles)})


class Need(NamedTuple):
    """An action on a resource; of several actions one is enough."""

    action: Action
    kind: Kind
    name: str


@dataclass(frozen=True, slots=True)
class Rule:
    """Allows or denies actions on resources to a principal, or to all with a role.

    Attributes:
        subject: `user:name`, `user:*` for everybody who is known, or `role:name`.
        kind: of the resource; None: of every kind.
        pattern: its name, `*`, or the beginning of its name with `*` behind it.
        actions: what the rule is about.
        allow: False denies.
        sources: networks that the call has to come from; empty: any.
    """

    subject: str
    kind: Kind | None
    pattern: str
    actions: Action
    allow: bool = True
    sources: tuple[IPv4Network | IPv6Network, ...] = ()

    def __str__(self) -> str:
        """As people write it."""
        verb = "allow" if self.allow else "deny"
        actions = ",".join(action.name or "" for action in Action if action in self.actions)
        sources = f" from {','.join(map(str, self.sources))}" if self.sources else ""
        return f"{verb} {self.subject} {actions} {self.kind or ANY} {self.pattern}{sources}"

    def fits(self, need: Need, address: IPv4Address | IPv6Address | None) -> bool:
        """Whether it is about this."""
        return (
            bool(need.action & self.actions)
            and (self.kind is need.kind or (self.kind is None and self._is_of_all(need)))
            and (need.name.startswith(self.pattern[:-1]) if self.pattern.endswith(ANY) else need.name == self.pattern)
            and (not self.sources or self._comes_from(address))
        )

    def _is_of_all(self, need: Need) -> bool:
        """Of all kinds: the cluster's names are none that anybody chose, so prefixes of them allow nothing there."""
        return need.kind is not Kind.CLUSTER or self.pattern == ANY or not self.allow

    def _comes_from(self, address: IPv4Address | IPv6Address | None) -> bool:
        # Where it is not known, nothing is allowed for it, and everything denied.
        return not self.allow if address is None else any(address in network for network in self.sources)

    @property
    def closeness(self) -> tuple[bool, int, bool, bool]:
        """The greatest one of fitting rules decides."""
        is_literal = not self.pattern.endswith(ANY)
        return is_literal, len(self.pattern), self.kind is not None, not self.allow


class _OfSubject:
    """The rules of one subject: by the whole name, and by the beginning of it."""

    __slots__ = ("_lengths", "_literal", "_prefixed")

    def __init__(self) -> None:
        self._literal: dict[str, list[Rule]] = {}
        self._prefixed: dict[str, list[Rule]] = {}
        self._lengths: list[int] = []

    def add(self, rule: Rule) -> None:
        """Adds a rule; the closest one first."""
        if not rule.pattern.endswith(ANY):
            self._literal.setdefault(rule.pattern, []).append(rule)
            return
        prefix = rule.pattern[:-1]
        self._prefixed.setdefault(prefix, []).append(rule)
        if len(prefix) not in self._lengths:
            self._lengths.append(len(prefix))  # Long ones are close ones, and come first.

    def closest(self, need: Need, address: IPv4Address | IPv6Address | None) -> Rule | None:
        """The one that decides."""
        found = self._first(self._literal.get(need.name), need, address)
        if found is not None:
            return found
        for length in self._lengths:
            if length <= len(need.name):
                found = self._first(self._prefixed.get(need.name[:length]), need, address)
                if found is not None:
                    return found
        return None

    @staticmethod
    def _first(rules: list[Rule] | None, need: Need, address: IPv4Address | IPv6Address | None) -> Rule | None:
        return next((rule for rule in rules or () if rule.fits(need, address)), None)


class Rules:
    """All rules, by subject."""

    def __init__(self, rules: Iterable[Rule] = ()) -> None:
        """Sorts them, the closest first."""
        self._by_subject: dict[str, _OfSubject] = {}
        for rule in sorted(rules, key=lambda rule: rule.closeness, reverse=True):
            self._by_subject.setdefault(rule.subject, _OfSubject()).add(rule)

    def allow(self, principal: Principal, need: Need) -> bool:
        """Whether a principal may do this; who has a tenant may do nothing outside of it, whatever the rules say."""
        if principal.tenant and (need.kind is Kind.CLUSTER or tenant_of(need.name) != principal.tenant):
            return False
        address = _address(principal.address)
        closest: Rule | None = None
        for subject in principal.subjects:
            own = self._by_subject.get(subject)
            found = None if own is None else own.closest(need, address)
            if found is not None and (closest is None or found.closeness > closest.closeness):
                closest = found
        return closest is not None and closest.allow


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        found = ip_address(text)
    except ValueError:
        return None
    # An IPv4 client of a socket that serves both.
    return getattr(found, "ipv4_mapped", None) or found


def actions_of(names: Iterable[str]) -> Action:
    """Actions from their names, or from names of rights.

    Raises:
        InvalidArgument: one is neither, or there is none.
    """
    actions = Action(0)
    for name in names:
        if name.lower() in RIGHTS:
            actions |= RIGHTS[name.lower()]
        elif name.upper() in Action.__members__:
            actions |= Action[name.upper()]
        else:
            known = [*RIGHTS, *(each.name or "" for each in Action)]
            raise InvalidArgument(f"{name!r} is none of {', '.join(known)}.", field="actions")
    if not actions:
        raise InvalidArgument("Name at least one action, such as produce.", field="actions")
    return actions


def rule_of(
    subject: str,
    kind: str,
    pattern: str,
    actions: Iterable[str],
    *,
    allow: bool = True,
    sources: Iterable[str] = (),
) -> Rule:
    """A rule from what people write.

    Raises:
        InvalidArgument: names the field that is wrong, and what it may be.
    """
    what, colon, name = subject.partition(":")
    if what not in {"user", "role"} or not colon or not name or len(subject) > LONGEST_SUBJECT:
        raise InvalidArgument(
            f"A subject is user:name, user:* or role:name, of {LONGEST_SUBJECT} characters at most.", field="subject"
        )
    for field, text in (("subject", subject), ("pattern", pattern)):
        if not text.isprintable() or text != text.strip():
            raise InvalidArgument("It has blanks at an end, or characters that cannot be printed.", field=field)
    if what == "role" and name == ANY:
        raise InvalidArgument("For everybody write user:*.", field="subject")
    if kind != ANY and kind not in set(Kind):
        raise InvalidArgument(f"A kind is {', '.join(Kind)} or {ANY}.", field="kind")
    if not pattern or len(pattern) > LONGEST_PATTERN or ANY in pattern[:-1]:
        raise InvalidArgument(
            f"A pattern is a name, the beginning of one with * behind it, or *; {LONGEST_PATTERN} characters at most.",
            field="pattern",
        )
    networks = []
    for text in sources:
        try:
            networks.append(ip_network(text))
        except ValueError as error:
            raise InvalidArgument(f"{text!r} is no network such as 10.1.0.0/16: {error}.", field="sources") from None
    found = None if kind == ANY else Kind(kind)
    return Rule(subject, found, pattern, actions_of(actions), allow, tuple(networks))
