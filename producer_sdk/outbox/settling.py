"""What became of rows is written down, in transactions that also renew the turn.

Other transactions may hold rows: an operator's, a report's, that of a process which stands still. Such a row, and its
message group, wait until it is free; it stays under way for as long, so it is not sent again. All others go on: after
a first wait for a lock, changes pass over rows that are held.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from client_core.errors import RequestRefused
from producer_sdk.outbox.target import NotTried
from producer_sdk.outbox.turn import Sending
from producer_sdk.outbox.working import LOCK_WAIT, is_locked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from client_core.local_database import LocalTransaction
    from producer_sdk.outbox.pending import Pending, PendingRows
    from producer_sdk.outbox.turn import Turn
    from producer_sdk.outbox.working import RunsWork

__all__ = ["Becomes", "Ended", "Settling"]

MOST_HELD = 10_000
"""Rows that wait for others' locks; with so many, nothing more is sent."""
_AT_ONCE = 1000
_FIRST_REST, _LONGEST_REST = 0.1, 1.0
_BLOCKED_REST = 2.0


class Becomes(Enum):
    """What is written about a row."""

    SENT = auto()
    """It is in the log."""
    FAILED = auto()
    """It may be in the log; it is sent again later."""
    ERROR = auto()
    """MESSAGE_ERROR."""
    TRIED = auto()
    """A former relay may have sent it."""
    NOTHING = auto()
    """It was not sent, and nothing is written."""


@dataclass(slots=True)
class Ended:
    """What became of a row.

    Attributes:
        row: The row.
        becomes: What is written.
        cause: Why it is FAILED or ERROR.
        since: Since when it may be in the log (monotonic time).
    """

    row: Pending
    becomes: Becomes
    cause: str
    since: float

    @classmethod
    def of(cls, row: Pending, outcome: Exception | None, since: float) -> Ended:
        """By what the target says."""
        if outcome is None:
            return cls(row, Becomes.SENT, "", since)
        if isinstance(outcome, NotTried):
            return cls(row, Becomes.NOTHING, "", since)
        becomes = Becomes.ERROR if isinstance(outcome, RequestRefused) else Becomes.FAILED
        return cls(row, becomes, f"{type(outcome).__name__}: {outcome}", since)


class Settling:
    """Writes for one relay, for as long as it has the turn."""

    def __init__(
        self, run: RunsWork, rows: PendingRows, turn: Turn, *, keep: bool, backoff: Callable[[int], float]
    ) -> None:
        """Takes whether rows that are sent stay, and the seconds to wait after so many failures of a row."""
        self._run = run
        self._rows = rows
        self._turn = turn
        self._keep = keep
        self._backoff = backoff
        self._fresh: dict[int, Ended] = {}
        self._held: dict[int, Ended] = {}
        self._held_due = 0.0
        self._rests = 0
        self._blocked: dict[Becomes, float] = {}
        self._written: list[Ended] = []
        """What is written, and not told yet."""
        self._passes_over = False

    def add(self, ended: Iterable[Ended]) -> None:
        """To be written at the next occasion."""
        for each in ended:
            if each.row.id not in self._held:
                self._fresh[each.row.id] = each

    @property
    def has_new(self) -> bool:
        """Whether something was added since."""
        return bool(self._fresh)

    @property
    def held(self) -> int:
        """How many rows wait for others' locks."""
        return len(self._held)

    @property
    def first_held(self) -> Ended | None:
        """The first of them."""
        return self._held[min(self._held)] if self._held else None

    @property
    def is_full(self) -> bool:
        """Whether so many wait that nothing more is to be sent."""
        return len(self._held) >= MOST_HELD

    @property
    def due(self) -> float | None:
        """When those that wait are looked at again (monotonic time); None: there are none."""
        return self._held_due if self._held else None

    def write(self, sending: Sequence[tuple[Sequence[Pending], float]]) -> list[Ended]:
        """Renews the turn, and writes what can be written.

        Args:
            sending: Rows that are being sent or about to be, and since when.

        Returns:
            What is written, also what was before an earlier call failed.

        Raises:
            TurnLost: The turn is another relay's; nothing is written any more.
        """
        if not self._held:
            fresh = list(self._fresh.values())
            try:
                self._run(lambda local: self._write(local, fresh, Sending.of(sending)), LOCK_WAIT)
            except Exception as error:
                if not self._passes_over or not is_locked(error):
                    raise
            else:
                self._fresh = {}
                return self._told(fresh)
        self._write_what_is_free(sending)
        return self._told([])

    def _told(self, more: list[Ended]) -> list[Ended]:
        written, self._written = [*self._written, *more], []
        return written

    def _write_what_is_free(self, sending: Sequence[tuple[Sequence[Pending], float]]) -> None:
        unwritten = [([each.row], each.since) for each in (*self._fresh.values(), *self._held.values())]
        noted = Sending.of([*sending, *unwritten])
        # By itself: while its own row is held, nothing can be done; while others are, it goes on.
        self._run(lambda local: self._turn.renew(local, noted), LOCK_WAIT)
        if not self._fresh and time.monotonic() < self._held_due:
            return
        self._held |= self._fresh
        self._fresh = {}
        is_any = False
        for becomes, part in self._parts():
            try:
                done = self._run(lambda local, part=part: self._write_free(local, part, noted), LOCK_WAIT)  # type: ignore[misc]
            except Exception as error:
                if not is_locked(error):
                    raise
                # Not the rows, but a place in an index.
                self._blocked[becomes] = time.monotonic() + _BLOCKED_REST
                continue
            is_any = is_any or bool(done)
            self._written += done
            for each in done:
                del self._held[each.row.id]
        self._rests = 0 if is_any else self._rests + 1
        self._held_due = time.monotonic() + min(_FIRST_REST * 2.0 ** min(self._rests, 10), _LONGEST_REST)

    def _parts(self) -> Iterator[tuple[Becomes, list[Ended]]]:
        for becomes in Becomes:
            found = [each for each in self._held.values() if each.becomes is becomes]
            for begin in range(0, len(found), _AT_ONCE):
                if time.monotonic() >= self._blocked.get(becomes, 0.0):
                    yield becomes, found[begin : begin + _AT_ONCE]

    def _write_free(self, local: LocalTransaction, part: list[Ended], sending: Sending | None) -> list[Ended]:
        if part[0].becomes is Becomes.NOTHING:
            return part
        self._turn.renew(local, sending)
        held = self._rows.held(local, sorted(each.row.id for each in part))
        free = [each for each in part if each.row.id not in held]
        self._write_rows(local, free)
        return free

    def _write(self, local: LocalTransaction, ended: list[Ended], sending: Sending | None) -> None:
        self._passes_over = bool(local.dialect.skip_locked)
        self._turn.renew(local, sending)
        self._write_rows(local, ended)

    def _write_rows(self, local: LocalTransaction, ended: list[Ended]) -> None:
        sent: list[int] = []
        failed: dict[tuple[str, int, float], list[int]] = {}
        errors: dict[str, list[int]] = {}
        tried: dict[float, list[int]] = {}
        for each in ended:
            number = each.row.id
            if each.becomes is Becomes.SENT:
                sent.append(number)
            elif each.becomes is Becomes.FAILED:
                failed.setdefault((each.cause, each.row.retries, each.since), []).append(number)
            elif each.becomes is Becomes.ERROR:
                errors.setdefault(each.cause, []).append(number)
            elif each.becomes is Becomes.TRIED:
                tried.setdefault(each.since, []).append(number)
        if sent:
            self._rows.sent(local, sorted(sent), keep=self._keep)
        for (cause, retries, since), ids in failed.items():
            self._rows.failed(local, sorted(ids), cause, self._backoff(retries + 1), time.monotonic() - since)
        for cause, ids in errors.items():
            self._rows.error(local, sorted(ids), cause)
        for since, ids in tried.items():
            self._rows.tried(local, sorted(ids), time.monotonic() - since)
