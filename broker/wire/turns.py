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
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable

AT_A_TIME, BESIDE_FEW = 6, 20
"""Calls of one client that are worked on while others call often, and while they call now and then."""
HERE_FOR, OFTEN = 1.0, 10
"""Seconds for which calls of others count, at least, and twice as long at most; how many are often."""
AT_ONCE, IN_SECONDS = 4, 0.01
"""Calls of a client that begin at once, and in how many seconds: those that are made one by one do not wait."""
STEP, MOST_OF_TIME = 0.001, 0.1
"""Seconds between two steps, in which calls that wait begin, at least; the most of all time that steps take."""
FEW = 2
"""Calls that come in within a step if none wait inside of gRPC any more; of those that do it hands over 5 to 10."""
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
        came: calls that came to wait since the last step.
        is_quiet: whether hardly any was worked on at the last step.
        went_on_at: when calls that waited began last.
    """

    client: str
    at_work: dict[Turn, float] = field(default_factory=dict)
    waiting: deque[Turn] = field(default_factory=deque)
    counted_until: float = 0.0
    counted: int = 0
    came: int = 0
    is_quiet: bool = False
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

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Takes what tells the time, in seconds."""
        self._clock = clock
        self._here_until = 0.0
        self._here: Counter[str] = Counter()
        self._here_before: Counter[str] = Counter()
        self._lines: dict[Line, None] = {}
        self._next_step: asyncio.TimerHandle | None = None

    def turn(self, line: Line) -> Turn:
        """A turn of a client, to be entered."""
        return Turn(self, line)

    def begins(self, turn: Turn, line: Line) -> bool:
        """Whether a call begins at once; otherwise it is told when it may."""
        now = self._clock()
        if now >= self._here_until:
            self._here_before = self._here if now < self._here_until + HERE_FOR else Counter()
            self._here, self._here_until = Counter(), now + HERE_FOR
        self._here[line.client] += 1
        if now >= line.counted_until:
            line.counted, line.counted_until = 0, now + IN_SECONDS
        line.counted += 1
        if (line.counted <= AT_ONCE and not line.waiting) or self._most(line) is None:
            line.at_work[turn] = now
            return True
        line.waiting.append(turn)
        line.came += 1
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

    def _most(self, line: Line) -> int | None:
        """How many of a client may be worked on; None: any number, for nobody else calls."""
        others = 0
        for counted in (self._here, self._here_before):
            for client, calls in counted.items():
                if client != line.client:
                    others += calls
                    if others >= OFTEN:
                        return AT_A_TIME
        return BESIDE_FEW if others else None

    def _step_later(self, pause: float = STEP) -> None:
        self._next_step = asyncio.get_running_loop().call_later(pause, self._step)

    def _step(self) -> None:
        self._next_step = None
        now = self._clock()
        for line in list(self._lines):
            self._go_on(line, now)
            if not line.waiting:
                del self._lines[line]
        if self._lines:
            # With very many lines the steps are longer.
            self._step_later(max(STEP, (self._clock() - now) / MOST_OF_TIME))

    def _go_on(self, line: Line, now: float) -> None:
        """Lets some of a client begin, if enough of those before have ended, and no others come in meanwhile."""
        for turn, began in list(line.at_work.items()):
            if began > now - SLOW:
                break
            del line.at_work[turn]
        most, came, was_quiet = self._most(line), line.came, line.is_quiet
        line.came, line.is_quiet = 0, most is None or len(line.at_work) <= most // 2
        if not line.is_quiet:
            return
        if most is not None and not (was_quiet and came <= FEW) and now - line.went_on_at < LONGEST_PAUSE:
            return
        line.is_quiet, line.went_on_at = False, now
        room = len(line.waiting) if most is None else most - len(line.at_work)
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
