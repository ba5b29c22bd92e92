"""Who did what from where: changes before they are made, and refusals, of which equal ones are merged."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from broker.ports.audit import AuditOutcome, AuditRecord

if TYPE_CHECKING:
    from broker.ports.audit import AuditStore

MERGED_FOR = 60.0
"""Seconds in which equal refusals become one record, after the first one."""
MOST_DIFFERENT = 200
"""Different refusals that are told apart in this time; the others are merged by their outcome alone."""
MOST_FAILURES = 1000
"""Failures that wait for the database; later ones are not recorded."""


class Audit:
    """Records."""

    def __init__(self, store: AuditStore) -> None:
        """Takes the port of records."""
        self._store = store
        self._refusals: dict[AuditRecord, _Merged] = {}
        self._began = float("-inf")
        self._failures: list[AuditRecord] = []

    async def changing(self, record: AuditRecord) -> None:
        """Records a change that is about to be made.

        Raises:
            StorageUnavailable: it cannot be recorded; the change must not be made.
        """
        await self._store.append_audit([record])

    def failed(self, record: AuditRecord, why: str) -> None:
        """Notes that a recorded change failed; `flush` records it."""
        if len(self._failures) < MOST_FAILURES:
            self._failures.append(replace(record, outcome=AuditOutcome.FAILED, detail=why))

    def refused(self, record: AuditRecord) -> None:
        """Notes a refusal; `flush` records it. Neither memory nor records grow with their rate."""
        merged = self._refusals.get(record)
        if merged is None:
            if len(self._refusals) >= MOST_DIFFERENT:
                record = AuditRecord("", "", "", "", "others", record.outcome)
            merged = self._refusals.setdefault(record, _Merged())
        merged.times += 1

    async def flush(self) -> None:
        """Records what was noted: the first of equal refusals at once, those after it when a minute is over."""
        failures, self._failures = self._failures, []
        now = time.monotonic()
        over = now - self._began >= MERGED_FOR
        noted = [(record, merged, merged.times) for record, merged in self._refusals.items() if merged.is_due(over)]
        records = [*failures, *(replace(record, times=times) for record, _, times in noted)]
        if records:
            try:
                await self._store.append_audit(records)
            except BaseException:
                self._failures = [*failures, *self._failures][:MOST_FAILURES]
                raise
        for _, merged, times in noted:
            merged.times -= times
            merged.recorded = True
        if over:
            self._began = now
            # What is refused meanwhile is noted anew.
            self._refusals = {
                record: _Merged(merged.times) for record, merged in self._refusals.items() if merged.times
            }


class _Merged:
    """Equal refusals since the last record of them."""

    __slots__ = ("recorded", "times")

    def __init__(self, times: int = 0) -> None:
        self.times = times
        self.recorded = False

    def is_due(self, over: bool) -> bool:
        return self.times > 0 and (over or not self.recorded)
