"""Makes a change by the calls of the admin client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from client_core.admin.access import Quota
from client_core.admin.configuration.planning import changed_settings

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
        ConfigurationError: Somebody has created it meanwhile, with a setting that cannot be changed.
    """
    if change.kind == "filter":
        await calls.set_filter(*change.content)
    elif change.kind == "quota":
        await calls.set_quota(Quota(change.name, **(change.content or {})))
    elif change.kind == "rule":
        await _rule(calls, change)
    else:
        topics = calls.create_topic, calls.update_topic, calls.delete_topic
        groups = calls.create_group, calls.update_group, calls.delete_group
        await _topic_or_group(change, *(topics if change.kind == "topic" else groups))


async def _topic_or_group(change: ConfigurationChange, create: Any, update: Any, delete: Any) -> None:
    """Makes it also where somebody else has meanwhile, or the answer to an earlier try was lost."""
    if change.action == "delete":
        await delete(change.name, missing_ok=True)
        return
    settings = change.content
    if change.action == "create":
        present = await create(change.name, **settings, exist_ok=True)
        settings = changed_settings(f"{change.kind}s.{change.name}", settings, present)
    if settings:
        await update(change.name, **settings)


async def _rule(calls: Any, change: ConfigurationChange) -> None:
    rule, narrowed = change.content, False
    if change.action == "delete":
        rule_id, rule = change.content
        if rule is None:
            await calls.revoke_access([rule_id])
            return
        narrowed = True
    # At once: in between nobody is let in by a rule that denied, nor shut out by one that allowed.
    await calls.grant_access(
        rule.subject, rule.actions, rule.kind, rule.pattern, deny=rule.deny, sources=rule.sources, replace=narrowed
    )
