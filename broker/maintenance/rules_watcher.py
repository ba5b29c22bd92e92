"""Reads the access rules again when they have changed, at any broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.maintenance.loop import Loop

if TYPE_CHECKING:
    from broker.services.rights import Rights

INTERVAL = 0.5


class RulesWatcher(Loop):
    """Keeps the rights up to date; while the database does not answer, those before count."""

    name = "rules watcher"

    def __init__(self, rights: Rights) -> None:
        """Takes the rights."""
        super().__init__(INTERVAL)
        self._rights = rights

    async def run_once(self) -> None:
        """One look."""
        await self._rights.refresh()
