"""Reports this broker and its clients to the database, for all brokers to tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.maintenance.loop import Loop

if TYPE_CHECKING:
    from broker.services.connections import BrokerReports

INTERVAL = 5.0


class StatusReporter(Loop):
    """Reports at every interval."""

    name = "status reporter"

    def __init__(self, reports: BrokerReports) -> None:
        """Takes what it reports."""
        super().__init__(INTERVAL)
        self._reports = reports

    async def run_once(self) -> None:
        """One report."""
        await self._reports.report()
