"""Access rules.

Rules are only inserted and deleted, under a lock that lets one change commit after the other: so their greatest number
and their count tell whether anything changed.
"""

from __future__ import annotations

import json
from ipaddress import ip_network
from typing import TYPE_CHECKING, Any

from broker.domain.access import ALL, ANY, Action, Kind, Rule
from broker.ports.access import StoredRule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.storage.engine.session import Session

_COLUMNS = "subject, kind, pattern, actions, allow, sources, made_at, made_by"
_SELECT = f"SELECT rule_id, {_COLUMNS} FROM access_rule"
_TURN = "access rules"


def state(session: Session) -> tuple[int, int]:
    """The greatest number, and the count."""
    greatest, count = session.fetch("SELECT COALESCE(MAX(rule_id), 0), COUNT(*) FROM access_rule")[0]
    return int(greatest), int(count)


def all_rules(session: Session) -> list[StoredRule]:
    """All rules, in the order in which they were granted."""
    return [_from_row(row) for row in session.fetch(f"{_SELECT} ORDER BY rule_id")]


def grant(session: Session, rule: Rule, now: int, made_by: str, *, replace: bool = False) -> StoredRule:
    """Adds a rule; one that is the same but for its actions gets these, too, or with `replace` only these."""
    _take_turn(session)
    same = [
        each
        for each in all_rules(session)
        if (each.rule.subject, each.rule.kind, each.rule.pattern, each.rule.allow, each.rule.sources)
        == (rule.subject, rule.kind, rule.pattern, rule.allow, rule.sources)
    ]
    actions = rule.actions
    for each in () if replace else same:
        actions |= each.rule.actions
    if len(same) == 1 and same[0].rule.actions == actions:
        return same[0]
    session.delete_in("access_rule", "rule_id", [each.rule_id for each in same])
    merged = Rule(rule.subject, rule.kind, rule.pattern, actions, rule.allow, rule.sources)
    session.insert("access_rule", _COLUMNS, [_values(merged, now, made_by)])
    return all_rules(session)[-1]


def revoke(session: Session, rule_ids: Sequence[int]) -> list[StoredRule]:
    """Removes rules; returns those that were there."""
    _take_turn(session)
    gone = [each for each in all_rules(session) if each.rule_id in set(rule_ids)]
    session.delete_in("access_rule", "rule_id", [each.rule_id for each in gone])
    return gone


def _take_turn(session: Session) -> None:
    session.insert("maintenance_turn", "task, broker_id, until", [(_TURN, "", 0)], keep_existing="task")
    session.fetch("SELECT task FROM maintenance_turn WHERE task = ?" + session.dialect.for_update, (_TURN,))


def _values(rule: Rule, now: int, made_by: str) -> tuple[Any, ...]:
    sources = json.dumps([str(network) for network in rule.sources]) if rule.sources else None
    kind = ANY if rule.kind is None else rule.kind.value
    return (rule.subject, kind, rule.pattern, rule.actions.value, int(rule.allow), sources, now, made_by)


def _from_row(row: Sequence[Any]) -> StoredRule:
    rule_id, subject, kind, pattern, actions, allow, sources, made_at, made_by = row
    networks = tuple(ip_network(text) for text in json.loads(sources)) if sources else ()
    # Of a kind that only a later version knows: nothing is allowed by it here, and everything is denied.
    known = Action(actions & ALL.value) if kind in {ANY, *Kind} or not allow else Action(0)
    rule = Rule(subject, Kind(kind) if kind in set(Kind) else None, pattern, known, bool(allow), networks)
    return StoredRule(rule_id, rule, made_at, made_by)
