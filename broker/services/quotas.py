"""What tenants may use, and whether it is used up: the quotas of the database, as they were half a second ago."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from broker.domain.tenancy import EACH_TENANT, Quota, Usage, over_quota
from broker.errors import BrokerError, Overloaded

if TYPE_CHECKING:
    from broker.ports.access import QuotaStore

MEASURED_EVERY = 1.0
"""Seconds between two measurements of what a tenant uses, at least."""
REST = 19.0
"""Times what a measurement took until the next one: no tenant's are more than a twentieth of the time."""
ONE_TURN = 0.25
"""Seconds of measuring between two looks at the quotas themselves."""
LONGEST_DEBT = 60.0
"""Seconds that one call, however large, is waited for at most; no debt is forgotten before it is paid."""
FORGOTTEN_AFTER = 120.0
"""Seconds after the last call of a tenant until it is not measured any more."""
MOST_TENANTS = 10_000


@dataclass(slots=True)
class _Rate:
    """What may be taken: a second's worth is saved up, and a debt is waited for."""

    left: float = 0.0
    at: float = field(default_factory=time.monotonic)
    rate: int = 0

    def wait(self, rate: int, now: float) -> float:
        """Seconds until something may be taken again; 0: now."""
        if rate != self.rate:
            # Debts of another rate are none of this one.
            self.left, self.rate = float(rate), rate
        elif rate:
            self.left = min(float(rate), self.left + (now - self.at) * rate)
        self.at = now
        return max(0.0, -self.left / rate) if rate else 0.0

    def take(self, amount: int) -> None:
        """Takes some; a debt of more than LONGEST_DEBT is not kept."""
        if self.rate:
            self.left = max(self.left - amount, -LONGEST_DEBT * self.rate)


@dataclass(slots=True)
class _Tenant:
    """A tenant that calls this broker."""

    name: str
    messages: _Rate = field(default_factory=_Rate)
    size: _Rate = field(default_factory=_Rate)
    usage: Usage = field(default_factory=Usage)
    measure_at: float = float("-inf")
    unmeasured: int = 0
    """Bytes that were sent since the last measurement began."""
    called_at: float = 0.0
    streams: int = 0


class Quotas:
    """Lets the calls of tenants in, or refuses them with the time after which they may come back."""

    def __init__(self, store: QuotaStore) -> None:
        """Nothing is limited until `refresh`."""
        self._store = store
        self._refreshing = asyncio.Lock()
        self._quotas: dict[str, Quota] = {}
        self._tenants: dict[str, _Tenant] = {}

    def of(self, tenant: str) -> Quota | None:
        """A tenant's quota; None if it has none."""
        return self._quotas.get(tenant) or self._quotas.get(EACH_TENANT)

    async def refresh(self) -> None:
        """Reads the quotas, and measures what tenants use that have called lately."""
        async with self._refreshing:
            await self._refresh()

    async def _refresh(self) -> None:
        self._quotas = {each.quota.tenant: each.quota for each in await self._store.quotas()}
        until, failed = time.monotonic() + ONE_TURN, None
        # Those that are due for longest come first: with many of them, not all get their turn.
        for tenant in sorted(self._tenants.values(), key=lambda each: each.measure_at):
            quota, now = self.of(tenant.name), time.monotonic()
            if quota is None or (now - tenant.called_at > FORGOTTEN_AFTER and not tenant.streams):
                if not tenant.streams:
                    self._tenants.pop(tenant.name, None)
            elif now >= tenant.measure_at and now < until:
                try:
                    await self._measure(tenant, quota)
                except BrokerError as error:
                    # Those after it are measured, nevertheless.
                    failed = error
                finally:
                    tenant.measure_at = now + max(MEASURED_EVERY, (time.monotonic() - now) * (1 + REST))
        if failed is not None:
            raise failed

    async def _measure(self, tenant: _Tenant, quota: Quota) -> None:
        sent = tenant.unmeasured
        if quota.retained_bytes or quota.pending_transactions:
            tenant.usage = await self._store.usage(quota, tenant.name)
        tenant.unmeasured -= sent

    def enter_send(self, name: str) -> None:
        """Lets a call in that sends, before its request is read.

        Raises:
            Overloaded: the tenant has used its quota up; when to come back.
        """
        quota = self.of(name)
        if quota is None:
            return
        tenant, now = self._tenant(name), time.monotonic()
        wait = max(tenant.messages.wait(quota.messages_per_second, now), tenant.size.wait(quota.bytes_per_second, now))
        if wait > 0:
            raise over_quota(name, "messages or bytes per second", wait)
        if quota.retained_bytes and tenant.usage.retained_bytes + tenant.unmeasured >= quota.retained_bytes:
            raise over_quota(name, "retained bytes", MEASURED_EVERY)

    def sent(self, name: str, messages: int, size: int) -> None:
        """Counts what a call sends; a debt is waited for by the next one."""
        if self.of(name) is not None:
            tenant = self._tenant(name)
            tenant.messages.take(messages)
            tenant.size.take(size)
            tenant.unmeasured += size

    def prepare(self, name: str) -> None:
        """Lets half messages in.

        Raises:
            Overloaded: too many transactions of the tenant have no verdict.
        """
        quota = self.of(name)
        most = quota.pending_transactions if quota is not None else 0
        if most and self._tenant(name).usage.pending_transactions >= most:
            raise over_quota(name, "transactions without a verdict", MEASURED_EVERY)

    def open_stream(self, name: str) -> None:
        """Counts a stream; `close_stream` when it ends.

        Raises:
            Overloaded: the tenant has as many as it may have.
        """
        quota, tenant = self.of(name), self._tenant(name)
        if quota is not None and quota.streams and tenant.streams >= quota.streams:
            raise over_quota(name, "streams", MEASURED_EVERY)
        tenant.streams += 1

    def close_stream(self, name: str) -> None:
        """Counts a stream less."""
        self._tenant(name).streams -= 1

    def _tenant(self, name: str) -> _Tenant:
        tenant = self._tenants.get(name)
        if tenant is None:
            if len(self._tenants) >= MOST_TENANTS:
                raise Overloaded("Too many tenants call this broker; come back a little later.", retry_after=1.0)
            tenant = self._tenants[name] = _Tenant(name)
        tenant.called_at = time.monotonic()
        return tenant
