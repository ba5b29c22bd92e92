"""Reports this broker and its clients to the database, for all brokers to tell."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from broker.errors import DatabaseReplaced
from broker.maintenance.loop import Loop

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.services.connections import BrokerReports

INTERVAL = 5.0

logger = logging.getLogger("halfmq.maintenance")


class StatusReporter(Loop):
    """Reports at every interval.

    Attributes:
        replaced: called when the database turns out to be in an earlier state than at the last report.
    """

    name = "status reporter"

    def __init__(self, reports: BrokerReports) -> None:
        """Takes what it reports."""
        super().__init__(INTERVAL)
        self._reports = reports
        self.replaced: Callable[[], None] = _nothing

    async def run_once(self) -> None:
        """One report."""
        try:
            await self._reports.report()
        except DatabaseReplaced as error:
            logger.error("%s", error.message)
            self.replaced()


def _nothing() -> None:
    return
