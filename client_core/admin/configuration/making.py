"""Makes a change by the calls of the admin client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from client_core.admin.access import Quota

if TYPE_CHECKING:
    from client_core.admin.configuration.changes import ConfigurationChange

__all__ = ["make"]


async def make(calls: Any, change: ConfigurationChange) -> None:
    """Makes a change.

    Args:
        calls: AsyncAdmin, which stands on this module.
        change: The change.

    Raises:
        RequestRefused: The broker refused it.
        BrokerUnavailable: No broker answered in time.
    """
    if change.kind == "filter":
        await calls.set_filter(*change.content)
    elif change.kind == "quota":
        await calls.set_quota(Quota(change.name, **(change.content or {})))
    elif change.kind == "rule":
        await _rule(calls, change)
    elif change.action == "delete":
        await (calls.delete_topic if change.kind == "topic" else calls.delete_group)(change.name)
    else:
        by_kind = {
            ("create", "topic"): calls.create_topic,
            ("update", "topic"): calls.update_topic,
            ("create", "group"): calls.create_group,
            ("update", "group"): calls.update_group,
        }
        await by_kind[change.action, change.kind](change.name, **change.content)


async def _rule(calls: Any, change: ConfigurationChange) -> None:
    rule = change.content
    if change.action == "delete":
        rule_id, rule = change.content
        await calls.revoke_access([rule_id])
    if rule is not None:
        await calls.grant_access(
            rule.subject, rule.actions, rule.kind, rule.pattern, deny=rule.deny, sources=rule.sources
        )
