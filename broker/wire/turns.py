"""Turns: while several clients make calls, a few of each are worked on at a time, and the others wait, unread.

One thread works on all calls, first come, first served, and what is stored at the same time is committed together. So
without turns a client that has many calls under way makes all others wait for all of them. A client that is alone waits
for nobody.

gRPC hands over one call whenever the event loop has done what it had to do; until then calls wait inside of it, in one
line for all clients. So that line has to stay short: calls go on in steps, and those that came meanwhile are taken in
first.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable

AT_A_TIME = 5
"""Calls of one client that are worked on while others call, too."""
HERE_FOR = 1.0
"""Seconds for which a client counts as one of those that call, at least; twice as long at most."""
AT_ONCE, IN_SECONDS = 4, 0.01
"""Calls of a client that begin at once, and in how many seconds: those that are made one by one do not wait."""
STEP = 0.001
"""Seconds between two steps, in which calls that wait begin."""
LONGEST_PAUSE = 0.01
"""Seconds for which a client's calls do not go on because more of them come in."""
SLOW = 0.1
"""Seconds after which a call gives up its place: it waits for something itself, such as a row that is locked."""


@dataclass(slots=True, eq=False)
class Line:
    """The calls of one client.

    Attributes:
        client: by which it is known.
        at_work: those that are worked on, and the times since when, in order.
        waiting: those that wait for that, in order.
        counted_until: until when calls are counted together.
        counted: calls that came so far.
        grows: whether more came to wait since the last step.
        went_on_at: when calls that waited began last.
    """

    client: str
    at_work: dict[Turn, float] = field(default_factory=dict)
    waiting: deque[Turn] = field(default_factory=deque)
    counted_until: float = 0.0
    counted: int = 0
    grows: bool = False
    went_on_at: float = 0.0


class Turn:
    """A call's."""

    __slots__ = ("_line", "_may_begin", "_turns")

    def __init__(self, turns: Turns, line: Line) -> None:
        """Takes the others."""
        self._turns = turns
        self._line = line
        self._may_begin: asyncio.Future[None] | None = None

    def __enter__(self) -> Self:
        """Takes a place, or one among those that wait."""
        if not self._turns.begins(self, self._line):
            self._may_begin = asyncio.get_running_loop().create_future()
        return self

    @property
    def waits(self) -> bool:
        """Whether it may not begin yet."""
        return self._may_begin is not None and not self._may_begin.done()

    async def begin(self) -> None:
        """Waits until it may begin."""
        if self._may_begin is not None:
            await self._may_begin

    def let_begin(self) -> None:
        """It may."""
        if self._may_begin is not None and not self._may_begin.done():
            self._may_begin.set_result(None)

    def __exit__(self, *_: object) -> None:
        """Gives up its place."""
        self._turns.ends(self, self._line)


class Turns:
    """Gives turns."""

    def __init__(self, most: int = AT_A_TIME, clock: Callable[[], float] = time.monotonic) -> None:
        """Takes how many calls of one client are worked on while others call, too."""
        self._most = most
        self._clock = clock
        self._here_until = 0.0
        self._here: set[str] = set()
        self._here_before: set[str] = set()
        self._lines: dict[Line, None] = {}
        self._next_step: asyncio.TimerHandle | None = None

    def turn(self, line: Line) -> Turn:
        """A turn of a client, to be entered."""
        return Turn(self, line)

    def begins(self, turn: Turn, line: Line) -> bool:
        """Whether a call begins at once; otherwise it is told when it may."""
        now = self._clock()
        if now >= self._here_until:
            self._here_before = self._here if now < self._here_until + HERE_FOR else set()
            self._here, self._here_until = set(), now + HERE_FOR
        self._here.add(line.client)
        if now >= line.counted_until:
            line.counted, line.counted_until = 0, now + IN_SECONDS
        line.counted += 1
        if (line.counted <= AT_ONCE and not line.waiting) or not self._has_others(line):
            line.at_work[turn] = now
            return True
        line.waiting.append(turn)
        line.grows = True
        self._lines[line] = None
        if self._next_step is None:
            self._step_later()
        return False

    def ends(self, turn: Turn, line: Line) -> None:
        """Ends a call, whether it had begun or not."""
        if turn in line.at_work:
            del line.at_work[turn]
        elif turn in line.waiting:
            # It was given up.
            line.waiting.remove(turn)

    def _has_others(self, line: Line) -> bool:
        return len(self._here) > 1 or len(self._here_before) > 1 or not self._here_before <= {line.client}

    def _step_later(self) -> None:
        self._next_step = asyncio.get_running_loop().call_later(STEP, self._step)

    def _step(self) -> None:
        self._next_step = None
        now = self._clock()
        for line in list(self._lines):
            self._go_on(line, now)
            if not line.waiting:
                del self._lines[line]
        if self._lines:
            self._step_later()

    def _go_on(self, line: Line, now: float) -> None:
        """Lets some of a client begin."""
        has_others = self._has_others(line)
        if has_others and line.grows and now - line.went_on_at < LONGEST_PAUSE:
            line.grows = False
            return
        line.grows, line.went_on_at = False, now
        for turn, began in list(line.at_work.items()):
            if began > now - SLOW:
                break
            del line.at_work[turn]
        room = self._most - len(line.at_work) if has_others else len(line.waiting)
        for _ in range(min(room, len(line.waiting))):
            turn = line.waiting.popleft()
            line.at_work[turn] = now
            turn.let_begin()


class _NoTurn(Turn):
    """Of calls that do not take turns."""

    __slots__ = ()

    def __init__(self) -> None:
        self._may_begin = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return


NO_TURN = _NoTurn()
