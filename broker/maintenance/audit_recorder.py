"""Records what was refused, at any broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.maintenance.loop import Loop

if TYPE_CHECKING:
    from broker.services.auditing import Audit

INTERVAL = 0.5


class AuditRecorder(Loop):
    """Writes the refusals and failures that were noted."""

    name = "audit recorder"

    def __init__(self, audit: Audit) -> None:
        """Takes what was noted."""
        super().__init__(INTERVAL)
        self._audit = audit

    async def run_once(self) -> None:
        """Records what was noted since the last round."""
        await self._audit.flush()
