"""Reads quotas, and measures what tenants use, at any broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.maintenance.loop import Loop

if TYPE_CHECKING:
    from broker.services.quotas import Quotas

INTERVAL = 0.5


class QuotaWatcher(Loop):
    """Keeps quotas up to date; while the database does not answer, those before count."""

    name = "quota watcher"

    def __init__(self, quotas: Quotas) -> None:
        """Takes the quotas."""
        super().__init__(INTERVAL)
        self._quotas = quotas

    async def run_once(self) -> None:
        """One look."""
        await self._quotas.refresh()
