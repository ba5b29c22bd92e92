from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from broker.errors import StorageUnavailable
from broker.ports.audit import AuditOutcome, AuditRecord
from broker.services import auditing
from broker.services.auditing import MERGED_FOR, MOST_DIFFERENT, MOST_OF_ONE, MOST_OTHERS, Audit, Change

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.ports.audit import AuditPage, AuditSearch

DENIED = AuditRecord("bob", "10.0.0.1", "ProducerService/Send", "PUB", "topic orders", AuditOutcome.DENIED)
CHANGE = AuditRecord("root", "10.0.0.1", "AdminService/DeleteTopic", "DELETE", "topic a", AuditOutcome.ALLOWED)


class Kept:
    """Records without a database."""

    def __init__(self) -> None:
        self.records: list[AuditRecord] = []
        self.is_away = False

    async def append_audit(self, records: Sequence[AuditRecord]) -> None:
        if self.is_away:
            raise StorageUnavailable("away")
        self.records += records

    async def audit_records(self, search: AuditSearch) -> AuditPage:
        raise NotImplementedError

    def taken(self) -> list[AuditRecord]:
        taken, self.records = self.records, []
        return taken


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    time = [1000.0]
    monkeypatch.setattr(auditing.time, "monotonic", lambda: time[0])
    return time


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture
def audit(kept: Kept, now: list[float]) -> Audit:
    assert now
    return Audit(kept)


async def test_a_change_is_recorded_before_it_is_made_or_not_made(audit: Audit, kept: Kept) -> None:
    await audit.changing(CHANGE)
    assert kept.taken() == [CHANGE]
    kept.is_away = True
    with pytest.raises(StorageUnavailable):
        await audit.changing(CHANGE)


async def test_equal_refusals_are_one_record_at_once_and_one_a_minute(
    audit: Audit, kept: Kept, now: list[float]
) -> None:
    await audit.flush()
    audit.refused(DENIED)
    audit.refused(DENIED)
    await audit.flush()
    assert kept.taken() == [replace(DENIED, times=2)]
    for _ in range(500):
        audit.refused(DENIED)
        await audit.flush()
    assert kept.taken() == []
    now[0] += MERGED_FOR
    await audit.flush()
    assert kept.taken() == [replace(DENIED, times=500)]
    await audit.flush()
    assert kept.taken() == []


async def test_one_who_tries_many_names_hides_nobody_else(audit: Audit, kept: Kept) -> None:
    await audit.flush()
    for number in range(1000):
        audit.refused(replace(DENIED, resource=f"topic {number}"))
    eve = replace(DENIED, principal="eve", resource="topic payments")
    audit.refused(eve)
    await audit.flush()
    records = kept.taken()
    assert len(records) == MOST_OF_ONE + 2
    assert eve in records
    others = AuditRecord("bob", "10.0.0.1", "", "", "others", AuditOutcome.DENIED, times=1000 - MOST_OF_ONE)
    assert others in records
    for number in range(1000):
        audit.refused(replace(DENIED, resource=f"another topic {number}"))
        await audit.flush()
    assert kept.taken() == []


async def test_many_who_are_refused_are_bounded(audit: Audit, kept: Kept) -> None:
    await audit.flush()
    for number in range(3 * (MOST_DIFFERENT + MOST_OTHERS)):
        audit.refused(replace(DENIED, principal=f"client-{number}"))
    await audit.flush()
    records = kept.taken()
    assert len(records) == MOST_DIFFERENT + MOST_OTHERS + 1
    assert sum(record.times for record in records) == 3 * (MOST_DIFFERENT + MOST_OTHERS)
    assert records[-1].principal == ""


async def test_what_is_being_written_is_not_written_twice(
    audit: Audit, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()
    append = kept.append_audit

    async def slowly(records: Sequence[AuditRecord]) -> None:
        begun.set()
        await go_on.wait()
        await append(records)

    monkeypatch.setattr(kept, "append_audit", slowly)
    audit.refused(DENIED)
    flushing = asyncio.ensure_future(audit.flush())
    await begun.wait()
    flushing.cancel()
    await asyncio.gather(flushing, return_exceptions=True)
    go_on.set()
    await audit.flush()
    await asyncio.sleep(0)
    assert kept.taken() == [DENIED]


async def test_nothing_is_lost_while_the_database_is_away(audit: Audit, kept: Kept, now: list[float]) -> None:
    kept.is_away = True
    audit.refused(DENIED)
    audit.failed(CHANGE, "TOPIC_IN_USE")
    for _ in range(3):
        with pytest.raises(StorageUnavailable):
            await audit.flush()
        audit.refused(DENIED)
        now[0] += MERGED_FOR
    kept.is_away = False
    await audit.flush()
    failed = replace(CHANGE, outcome=AuditOutcome.FAILED, detail="TOPIC_IN_USE")
    assert kept.taken() == [replace(DENIED, times=4), failed]


async def test_a_change_that_is_given_up_while_it_is_recorded_is_noted(
    audit: Audit, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(records: Sequence[AuditRecord]) -> None:
        kept.records += records
        await asyncio.Event().wait()

    monkeypatch.setattr(kept, "append_audit", never)
    change = Change(audit, CHANGE)
    beginning = asyncio.ensure_future(change.begins())
    await asyncio.sleep(0)
    beginning.cancel()
    await asyncio.gather(beginning, return_exceptions=True)
    monkeypatch.undo()
    change.failed("not again")
    await audit.flush()
    assert kept.taken() == [
        CHANGE,
        replace(CHANGE, outcome=AuditOutcome.FAILED, detail="cancelled before it was made"),
    ]
