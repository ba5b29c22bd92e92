"""Administration of access: rules, quotas, and the record of who did what."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from broker.domain.limits import check_count
from broker.services.auditing import about_to_change
from broker.services.paging import number_token, page_limit, parse_number_token

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.domain.access import Rule
    from broker.domain.tenancy import Quota
    from broker.ports.access import QuotaStore, RuleStore, StoredQuota, StoredRule
    from broker.ports.audit import AuditSearch, AuditStore, StoredAuditRecord
    from broker.services.rights import Rights

MOST_REVOKED = 20
"""So many that all of them can be recorded."""


class AccessOperations:
    """Changes and lists rules and quotas, and reads the record."""

    def __init__(self, rules: RuleStore, quotas: QuotaStore, audit: AuditStore, rights: Rights) -> None:
        """Takes the ports of rules, quotas and records, and the rights, which know a change made here at once."""
        self._rules = rules
        self._quotas = quotas
        self._audit = audit
        self._rights = rights

    async def grant(self, rule: Rule, made_by: str, *, replace: bool = False) -> StoredRule:
        """Adds a rule; one that is the same but for its actions gets these, too, or with `replace` only these."""
        await about_to_change(str(rule))
        granted = await self._rules.grant(rule, made_by, replace=replace)
        await self._rights.refresh()
        return granted

    async def revoke(self, rule_ids: Sequence[int]) -> list[StoredRule]:
        """Removes rules; returns those that were there.

        Raises:
            InvalidArgument: they are too many.
        """
        check_count(len(rule_ids), MOST_REVOKED, "rule_ids")
        wanted = set(rule_ids)
        await about_to_change(
            "; ".join(str(each) for each in await self._rules.access_rules() if each.rule_id in wanted)
        )
        gone = await self._rules.revoke(rule_ids)
        await self._rights.refresh()
        return gone

    async def rules(self) -> list[StoredRule]:
        """All rules."""
        return await self._rules.access_rules()

    async def set_quota(self, quota: Quota, set_by: str) -> StoredQuota:
        """Sets a tenant's quota; one without limits is removed.

        Raises:
            InvalidArgument: names the field that is wrong.
        """
        quota.check()
        changed = await self._quotas.set_quota(quota, set_by)
        if self._rights.quotas is not None:
            await self._rights.quotas.refresh()
        return changed

    async def quotas(self) -> list[StoredQuota]:
        """All quotas."""
        return await self._quotas.quotas()

    async def audit(self, search: AuditSearch, page_size: int, page_token: str) -> tuple[list[StoredAuditRecord], str]:
        """A page of records, and the token of the next page (empty at the end).

        Raises:
            InvalidArgument: the size or the token is wrong.
        """
        wanted = replace(search, after=parse_number_token(page_token), limit=page_limit(page_size))
        page = await self._audit.audit_records(wanted)
        return page.entries, number_token(page.following)
