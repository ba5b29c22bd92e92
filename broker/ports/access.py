"""Access rules and quotas: the storage's ports, and their values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.domain.access import Rule
    from broker.domain.tenancy import Quota, Usage


@dataclass(frozen=True, slots=True)
class StoredRule:
    """A rule as it is stored; time in microseconds.

    Attributes:
        rule_id: its number, which is never used again.
        rule: the rule.
        made_at: when it was granted.
        made_by: the principal who granted it; empty if it was done in the database.
    """

    rule_id: int
    rule: Rule
    made_at: int
    made_by: str

    def __str__(self) -> str:
        """As it is recorded."""
        return f"{self.rule_id}: {self.rule}"


class RuleStore(Protocol):
    """The rules of all brokers on a database."""

    async def rules_state(self) -> tuple[int, int]:
        """What changes with every change of the rules."""
        ...

    async def access_rules(self) -> list[StoredRule]:
        """All rules."""
        ...

    async def grant(self, rule: Rule, made_by: str, *, replace: bool = False) -> StoredRule:
        """Adds a rule; one that is the same but for its actions gets these, too, or with `replace` only these."""
        ...

    async def revoke(self, rule_ids: Sequence[int]) -> list[StoredRule]:
        """Removes rules; returns those that were there."""
        ...


@dataclass(frozen=True, slots=True)
class StoredQuota:
    """A quota as it is stored; when it was set (microseconds), and by whom."""

    quota: Quota
    set_at: int
    set_by: str


class QuotaStore(Protocol):
    """What tenants may use, and what they use."""

    async def quotas(self) -> list[StoredQuota]:
        """All quotas, by tenant."""
        ...

    async def set_quota(self, quota: Quota, set_by: str) -> StoredQuota:
        """Sets a tenant's quota; one without limits is removed."""
        ...

    async def usage(self, quota: Quota, tenant: str) -> Usage:
        """What a tenant uses of what the quota limits."""
        ...
