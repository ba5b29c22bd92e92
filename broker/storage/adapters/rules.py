"""Access rules, quotas and audit records, through the threads of look-ups and changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.storage.adapters.access import Access
from broker.storage.catalog import audit, quotas, rules

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.domain.access import Rule
    from broker.domain.tenancy import Quota, Usage
    from broker.ports.access import StoredQuota, StoredRule
    from broker.ports.audit import AuditPage, AuditRecord, AuditSearch


class AccessRules(Access):
    """Implements RuleStore, QuotaStore and AuditStore."""

    async def rules_state(self) -> tuple[int, int]:
        """What changes with every change of the rules."""
        return await self._watch(rules.state)

    async def access_rules(self) -> list[StoredRule]:
        """All rules."""
        return await self._watch(rules.all_rules)

    async def grant(self, rule: Rule, made_by: str, *, replace: bool = False) -> StoredRule:
        """Adds a rule; one that is the same but for its actions gets these, too, or with `replace` only these."""
        now = self.clock.now()
        return await self._write(lambda session: rules.grant(session, rule, now, made_by, replace=replace))

    async def revoke(self, rule_ids: Sequence[int]) -> list[StoredRule]:
        """Removes rules; returns those that were there."""
        return await self._write(lambda session: rules.revoke(session, rule_ids))

    async def quotas(self) -> list[StoredQuota]:
        """All quotas, by tenant."""
        return await self._watch(quotas.all_quotas)

    async def set_quota(self, quota: Quota, set_by: str) -> StoredQuota:
        """Sets a tenant's quota; one without limits is removed."""
        now = self.clock.now()
        return await self._write(lambda session: quotas.set_quota(session, quota, now, set_by))

    async def usage(self, quota: Quota, tenant: str) -> Usage:
        """What a tenant uses of what the quota limits."""
        return await self._read(lambda session: quotas.usage(session, quota, tenant))

    async def append_audit(self, records: Sequence[AuditRecord]) -> None:
        """Appends records; they are durable then."""
        now = self.clock.now()
        await self._write(lambda session: audit.append(session, records, now, self._broker_id))

    async def audit_records(self, search: AuditSearch) -> AuditPage:
        """Some records."""
        return await self._read(lambda session: audit.find(session, search))

    async def trim_audit(self, kept: int) -> int:
        """Deletes some records older than `kept` microseconds; returns how many."""
        before = self.clock.now() - kept
        return await self._clean(lambda session: audit.trim(session, before))
