from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from broker.domain.tenancy import EACH_TENANT, Quota, Usage
from broker.errors import Overloaded, StorageUnavailable
from broker.ports.access import StoredQuota
from broker.services import quotas as services
from broker.services.quotas import FORGOTTEN_AFTER, MEASURED_EVERY, Quotas

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass
class Stored:
    """Quotas without a database."""

    limits: list[Quota]
    used: Usage = field(default_factory=Usage)
    measured: list[str] = field(default_factory=list)
    pass_time: Callable[[], None] = lambda: None

    async def quotas(self) -> list[StoredQuota]:
        return [StoredQuota(quota, 0, "") for quota in self.limits]

    async def set_quota(self, quota: Quota, set_by: str) -> StoredQuota:
        raise NotImplementedError

    async def usage(self, quota: Quota, tenant: str) -> Usage:
        self.measured.append(tenant)
        self.pass_time()
        return self.used


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    time = [1000.0]
    monkeypatch.setattr(services.time, "monotonic", lambda: time[0])
    return time


async def of(*limits: Quota) -> tuple[Quotas, Stored]:
    stored = Stored(list(limits))
    quotas = Quotas(stored)
    await quotas.refresh()
    return quotas, stored


async def test_a_rate_saves_up_a_second_and_is_in_debt_after_more(now: list[float]) -> None:
    quotas, _ = await of(Quota("acme", messages_per_second=100))
    quotas.enter_send("acme")
    quotas.sent("acme", 100, 1)
    quotas.enter_send("acme")
    quotas.sent("acme", 50, 1)
    with pytest.raises(Overloaded, match="'acme' has used up its quota of messages") as refused:
        quotas.enter_send("acme")
    assert refused.value.reason == "QUOTA_EXCEEDED"
    assert refused.value.retry_after == pytest.approx(0.5)
    now[0] += 0.5
    quotas.enter_send("acme")
    now[0] += 100
    quotas.enter_send("acme")
    quotas.sent("acme", 101, 1)
    with pytest.raises(Overloaded):
        quotas.enter_send("acme")


async def test_bytes_have_a_rate_of_their_own(now: list[float]) -> None:
    quotas, _ = await of(Quota("acme", bytes_per_second=1000))
    quotas.enter_send("acme")
    quotas.sent("acme", 1, 5000)
    with pytest.raises(Overloaded) as refused:
        quotas.enter_send("acme")
    assert refused.value.retry_after == pytest.approx(4.0)
    now[0] += 4.0
    quotas.enter_send("acme")


async def test_tenants_do_not_share_and_those_without_a_quota_have_no_limit(now: list[float]) -> None:
    quotas, _ = await of(Quota("acme", messages_per_second=1), Quota("globex", messages_per_second=1))
    assert now
    for name in ("acme", "initech"):
        quotas.enter_send(name)
        quotas.sent(name, 100, 1)
    quotas.enter_send("globex")
    quotas.enter_send("initech")
    with pytest.raises(Overloaded):
        quotas.enter_send("acme")


async def test_each_tenant_without_one_has_the_common_quota_for_itself() -> None:
    quotas, _ = await of(Quota(EACH_TENANT, streams=1), Quota("acme", streams=2))
    quotas.open_stream("globex")
    quotas.open_stream("initech")
    for _ in range(2):
        quotas.open_stream("acme")
    for name in ("globex", "initech", "acme"):
        with pytest.raises(Overloaded):
            quotas.open_stream(name)
    quotas.close_stream("globex")
    quotas.open_stream("globex")


async def test_what_is_stored_is_measured_while_the_tenant_calls(now: list[float]) -> None:
    quotas, stored = await of(Quota("acme", retained_bytes=1000, pending_transactions=5))
    quotas.enter_send("acme")
    quotas.prepare("acme")
    stored.used = Usage(retained_bytes=1000, pending_transactions=5)
    await quotas.refresh()
    with pytest.raises(Overloaded, match="retained bytes"):
        quotas.enter_send("acme")
    with pytest.raises(Overloaded, match="without a verdict"):
        quotas.prepare("acme")
    await quotas.refresh()
    assert stored.measured == ["acme"]
    stored.used = Usage()
    now[0] += MEASURED_EVERY
    await quotas.refresh()
    quotas.enter_send("acme")
    quotas.prepare("acme")
    now[0] += FORGOTTEN_AFTER + 1
    await quotas.refresh()
    assert len(stored.measured) == 2


async def test_what_was_sent_since_counts_before_it_is_measured(now: list[float]) -> None:
    quotas, stored = await of(Quota("acme", retained_bytes=1000))
    quotas.enter_send("acme")
    quotas.sent("acme", 1, 600)
    quotas.enter_send("acme")
    quotas.sent("acme", 1, 400)
    with pytest.raises(Overloaded, match="retained bytes"):
        quotas.enter_send("acme")
    stored.used = Usage(retained_bytes=999)
    now[0] += MEASURED_EVERY
    await quotas.refresh()
    quotas.enter_send("acme")
    quotas.sent("acme", 1, 1)
    with pytest.raises(Overloaded, match="retained bytes"):
        quotas.enter_send("acme")


async def test_measuring_takes_a_twentieth_of_the_time_and_lets_others_have_turns(now: list[float]) -> None:
    tenants = ("acme", "globex", "initech")
    quotas, stored = await of(*(Quota(tenant, retained_bytes=1000) for tenant in tenants))
    stored.pass_time = lambda: now.__setitem__(0, now[0] + 2.0)
    for tenant in tenants:
        quotas.enter_send(tenant)
    for turn in range(1, 4):
        # One takes longer than a turn.
        await quotas.refresh()
        assert sorted(stored.measured) == sorted(tenants[:turn])
    await quotas.refresh()
    assert len(stored.measured) == 3
    now[0] += 2.0 * 20 - 3 * 2.0
    await quotas.refresh()
    assert stored.measured[3:] == ["acme"]


async def test_one_that_cannot_be_measured_does_not_keep_others_from_it(now: list[float]) -> None:
    quotas, stored = await of(Quota("big", retained_bytes=1000), Quota("small", retained_bytes=1000))
    for tenant in ("big", "small"):
        quotas.enter_send(tenant)

    def fail() -> None:
        if stored.measured[-1] == "big":
            raise StorageUnavailable("it takes too long")

    stored.pass_time = fail
    for _ in range(20):
        quotas.enter_send("small")
        quotas.sent("small", 1, 600)
        now[0] += MEASURED_EVERY
        with pytest.raises(StorageUnavailable):
            await quotas.refresh()
    assert stored.measured.count("small") == stored.measured.count("big") == 20


async def test_a_quota_that_is_removed_does_not_count_any_more() -> None:
    quotas, stored = await of(Quota("acme", streams=1))
    quotas.open_stream("acme")
    stored.limits = []
    await quotas.refresh()
    quotas.open_stream("acme")
    quotas.close_stream("acme")
    quotas.close_stream("acme")
    stored.limits = [Quota("acme", streams=1)]
    await quotas.refresh()
    quotas.open_stream("acme")
    with pytest.raises(Overloaded):
        quotas.open_stream("acme")
