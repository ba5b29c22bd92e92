"""Who did what from where: changes before they are made, and refusals, of which equal ones are merged."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING

from broker.ports.audit import AuditOutcome, AuditRecord

if TYPE_CHECKING:
    from collections.abc import Iterable

    from broker.ports.audit import AuditStore

MERGED_FOR = 60.0
"""Seconds in which equal refusals become one record, after the first one."""
MOST_DIFFERENT = 200
"""Different refusals that are told apart in this time; the others are merged by name, address and outcome."""
MOST_OF_ONE = 20
"""Different ones of one name, or of one address of those who have none."""
MOST_OTHERS = 2000
"""Names and addresses that are told apart then."""


class Audit:
    """Records."""

    def __init__(self, store: AuditStore) -> None:
        """Takes the port of records."""
        self._store = store
        self._refusals: dict[AuditRecord, _Merged] = {}
        self._of_one: Counter[str] = Counter()
        self._began = float("-inf")

    async def changing(self, record: AuditRecord) -> None:
        """Records a change that is about to be made.

        Raises:
            StorageUnavailable: it cannot be recorded; the change must not be made.
        """
        await self._store.append_audit([record])

    def failed(self, record: AuditRecord, why: str) -> None:
        """Notes that a recorded change failed; `flush` records it, merged as refusals are."""
        self.refused(replace(record, outcome=AuditOutcome.FAILED, detail=why))

    def refused(self, record: AuditRecord) -> None:
        """Notes a refusal; `flush` records it. Neither memory nor records grow with their rate."""
        merged = self._refusals.get(record)
        if merged is None:
            record = self._told_apart(record)
            merged = self._refusals.setdefault(record, _Merged())
        merged.times += 1

    def _told_apart(self, record: AuditRecord) -> AuditRecord:
        """The record, as far as there is room: one who tries many names must not hide what others do."""
        whose = record.principal or record.address
        if len(self._refusals) < MOST_DIFFERENT and self._of_one[whose] < MOST_OF_ONE:
            self._of_one[whose] += 1
            return record
        others = AuditRecord(record.principal, record.address, "", "", "others", record.outcome)
        if others in self._refusals or len(self._refusals) < MOST_DIFFERENT + MOST_OTHERS:
            return others
        return AuditRecord("", "", "", "", "others", record.outcome)

    async def flush(self) -> None:
        """Records what was noted: the first of equal refusals at once, those after it when a minute is over."""
        now = time.monotonic()
        over = now - self._began >= MERGED_FOR
        noted = [(record, merged, merged.times) for record, merged in self._refusals.items() if merged.is_due(over)]
        if noted:
            records = [replace(record, times=times) for record, _, times in noted]
            writing = asyncio.ensure_future(self._store.append_audit(records))
            try:
                # It goes on if this is cancelled: nothing is written twice.
                await asyncio.shield(writing)
            except asyncio.CancelledError:
                _wrote(noted)
                raise
        _wrote(noted)
        if over:
            self._began = now
            # What is refused meanwhile is noted anew.
            self._refusals = {
                record: _Merged(merged.times) for record, merged in self._refusals.items() if merged.times
            }
            self._of_one = Counter(record.principal or record.address for record in self._refusals)


class Change:
    """A call that is about to change something."""

    def __init__(self, audit: Audit, record: AuditRecord) -> None:
        """Takes the record of it."""
        self._audit = audit
        self._record = record
        self._has_begun = False

    async def begins(self, detail: str = "") -> None:
        """Records it: it is judged, and made next; `detail`: what is known of it now, instead of its request.

        Raises:
            StorageUnavailable: it cannot be recorded; the change must not be made.
        """
        if not self._has_begun:
            try:
                await self._audit.changing(replace(self._record, detail=detail) if detail else self._record)
            except asyncio.CancelledError:
                # It may be recorded by now.
                self._audit.failed(self._record, "cancelled before it was made")
                raise
            self._has_begun = True

    def failed(self, why: str) -> None:
        """Notes that it failed, if it had begun."""
        if self._has_begun:
            self._audit.failed(self._record, why)


CHANGE: ContextVar[Change | None] = ContextVar("change", default=None)
"""Of the call that runs in this task."""


async def about_to_change(detail: str = "") -> None:
    """Records the current call, if it is one that is recorded, and was not yet; see `Change.begins`."""
    change = CHANGE.get()
    if change is not None:
        await change.begins(detail)


class _Merged:
    """Equal refusals since the last record of them."""

    __slots__ = ("recorded", "times")

    def __init__(self, times: int = 0) -> None:
        self.times = times
        self.recorded = False

    def is_due(self, over: bool) -> bool:
        return self.times > 0 and (over or not self.recorded)


def _wrote(noted: Iterable[tuple[AuditRecord, _Merged, int]]) -> None:
    for _, merged, times in noted:
        merged.times -= times
        merged.recorded = True
