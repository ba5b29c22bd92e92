"""Access rules, through the threads of look-ups and changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.storage.adapters.access import Access
from broker.storage.catalog import rules

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.domain.access import Rule
    from broker.ports.access import StoredRule


class AccessRules(Access):
    """Implements RuleStore."""

    async def rules_state(self) -> tuple[int, int]:
        """What changes with every change of the rules."""
        return await self._watch(rules.state)

    async def access_rules(self) -> list[StoredRule]:
        """All rules."""
        return await self._watch(rules.all_rules)

    async def grant(self, rule: Rule, made_by: str) -> StoredRule:
        """Adds a rule; one that is the same but for its actions is replaced by one with the actions of both."""
        now = self.clock.now()
        return await self._write(lambda session: rules.grant(session, rule, now, made_by))

    async def revoke(self, rule_ids: Sequence[int]) -> list[StoredRule]:
        """Removes rules; returns those that were there."""
        return await self._write(lambda session: rules.revoke(session, rule_ids))
