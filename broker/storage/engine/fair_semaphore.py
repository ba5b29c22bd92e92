"""Fair scheduling of a limited resource: the party that used least of it is next."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from broker.errors import StorageUnavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Hashable


@dataclass(slots=True)
class _Party:
    used: float
    """Seconds that it used, counted from the minimum of the others when it arrived."""
    since: list[float] = field(default_factory=list)
    """Start times of its current turns."""
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)


class FairSemaphore:
    """Fair turns for parties identified by a key, so that a busy party does not block others.

    A returning party starts at the minimum of the others, so that parties cannot accumulate unused turns.
    """

    def __init__(
        self, at_once: int, clock: Callable[[], float] = time.monotonic, *, most_of_one: int | None = None
    ) -> None:
        """Takes the number of concurrent turns, a clock in seconds, and how many turns one party may have at a time."""
        self._free = at_once
        self._most_of_one = most_of_one or at_once
        self._clock = clock
        self._parties: dict[Hashable, _Party] = {}
        self._closed = False

    @asynccontextmanager
    async def turn(self, who: Hashable) -> AsyncIterator[None]:
        """A context manager for a turn of this party.

        Raises:
            StorageUnavailable: the storage was closed meanwhile.
        """
        party = self._parties.get(who)
        if party is None:
            party = self._parties[who] = _Party(self._least())
        waiting = asyncio.get_running_loop().create_future()
        party.waiting.append(waiting)
        self._give()
        try:
            await waiting
        except BaseException:
            if waiting in party.waiting:
                party.waiting.remove(waiting)
            elif not waiting.cancelled():
                self._end(party)
            raise
        try:
            yield
        finally:
            self._end(party)

    def close(self) -> None:
        """Fails current and future waiters."""
        self._closed = True
        self._give()

    def _had(self, party: _Party) -> float:
        now = self._clock()
        return party.used + sum(now - began for began in party.since)

    def _least(self) -> float:
        """The minimum usage of the present parties."""
        there = [self._had(party) for party in self._parties.values() if party.waiting or party.since]
        return min(there, default=0.0)

    def _give(self) -> None:
        while self._free or self._closed:
            waiting_ones = [
                party
                for party in self._parties.values()
                if party.waiting and (self._closed or len(party.since) < self._most_of_one)
            ]
            if not waiting_ones:
                return
            party = min(waiting_ones, key=self._had)
            waiting = party.waiting.popleft()
            if waiting.cancelled():
                continue
            self._free -= 1
            party.since.append(self._clock())
            if self._closed:
                waiting.set_exception(StorageUnavailable("The broker is closing; nothing was changed."))
            else:
                waiting.set_result(None)

    def _end(self, party: _Party) -> None:
        party.used += self._clock() - party.since.pop(0)
        self._free += 1
        # Parties that would restart at the same value are removed; all of them, if no party is present.
        least = self._least()
        anybody = any(each.waiting or each.since for each in self._parties.values())
        self._parties = {
            who: each
            for who, each in self._parties.items()
            if each.waiting or each.since or (anybody and each.used > least)
        }
        self._give()
