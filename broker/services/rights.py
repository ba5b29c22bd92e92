"""What principals may do now: the rules of the database, as they were half a second ago."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.domain.access import Rules

if TYPE_CHECKING:
    from broker.domain.access import Need, Principal
    from broker.ports.access import RuleStore

MOST_REMEMBERED = 50_000
"""Answers that are remembered until the rules change."""


class Rights:
    """Answers whether a principal may do something, without a query."""

    def __init__(self, store: RuleStore) -> None:
        """Nothing is allowed until `refresh`."""
        self._store = store
        self._state: tuple[int, int] | None = None
        self._rules = Rules()
        self._answers: dict[tuple[Principal, Need], bool] = {}

    async def refresh(self) -> bool:
        """Reads the rules if they have changed; returns whether they have."""
        state = await self._store.rules_state()
        if state == self._state:
            return False
        # A change between the two reads is read again with the next one.
        self._rules = Rules(each.rule for each in await self._store.access_rules())
        self._state = state
        self._answers.clear()
        return True

    def allow(self, principal: Principal, need: Need) -> bool:
        """Whether a principal may do this."""
        known = self._answers.get((principal, need))
        if known is None:
            known = self._rules.allow(principal, need)
            if len(self._answers) >= MOST_REMEMBERED:
                self._answers.clear()
            self._answers[principal, need] = known
        return known
