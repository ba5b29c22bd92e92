"""How names come into the list of placements and leave it, with what has them."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import asynccontextmanager, suppress
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from broker.errors import AlreadyExists, BrokerError, Moved, NotFound, StorageUnavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Iterable

    from broker.cells.cell import Cell, Cells
    from broker.cells.placing import Placing
    from broker.domain.cell import Name

logger = logging.getLogger("halfmq.broker")

ResultT = TypeVar("ResultT")


class Naming:
    """Keeps the list of placements true: what is created is in it before, what is gone leaves it."""

    def __init__(self, placing: Placing, cells: Cells) -> None:
        """Takes the placements and the cells."""
        self._placing = placing
        self._cells = cells
        self._finishing: dict[asyncio.Task[Any], Name] = {}

    def of(self, cells: Cells) -> Naming:
        """The same with other bounds of calls."""
        own = copy(self)
        own._cells = cells
        return own

    @asynccontextmanager
    async def creating(self, name: Name, cell: Cell) -> AsyncIterator[None]:
        """Surrounds what creates something in a cell by being named there: it is in the list before.

        Where it was may be remembered, and it have been deleted and be at home by now.

        Raises:
            Moved: it is in another cell.
        """
        try:
            placed = await self._placing.place(name, cell.number)
        except AlreadyExists:
            raise Moved(name) from None
        if placed.cell != cell.number:
            raise Moved(name)
        try:
            yield
        except BrokerError as error:
            await self.displace_refused(name, cell, error)
            raise
        # Somebody may just have deleted another one, and its place.
        try:
            await self.place_again(name, cell)
        except AlreadyExists:
            raise Moved(name) from None

    async def placed_anew(self, name: Name, before: Cell, cell: Cell) -> Cell:
        """Places what is not in its cell in another one; returns where it is placed then."""
        if before is not self._cells.home:
            await self.displace(name, before)
        if cell is self._cells.home:
            placed = (await self._placing.find([name], again=True))[name]
        else:
            placed = await self._placing.place(name, cell.number)
        return self._cells.numbered(placed.cell)

    async def place_again(self, name: Name, cell: Cell) -> None:
        """Places what was in a cell a moment ago, and perhaps is in the list no more.

        Whoever deletes it meanwhile may take its place before it is placed here: what is in the cell no more loses it.

        Raises:
            AlreadyExists: there is one at home.
            Moved: there is one in another cell.
        """
        try:
            placed = self._cells.numbered((await self._placing.place(name, cell.number)).cell)
        except AlreadyExists:
            await self._log_lost(name, cell, self._cells.home)
            raise
        if placed is not cell:
            await self._log_lost(name, cell, placed)
            raise Moved(name)
        # It is there, whether that can be looked at now or not.
        with suppress(StorageUnavailable):
            await self.displace(name, cell)

    async def _log_lost(self, name: Name, cell: Cell, other: Cell) -> None:
        """Logs what is in a cell, and in the list in another one."""
        if await self._cells.has(cell, name):
            logger.error(
                "The %s is in the cell %s and in the cell %s: that in the former is found by nobody.",
                name,
                cell.name,
                other.name,
            )

    async def displace(self, name: Name, cell: Cell) -> None:
        """Takes a name from the list that is not in its cell: it was deleted, or its creation was refused.

        This comes to its end, though whoever asks for it may not wait for that: in between home refuses the name.
        """
        await self.to_its_end(self._displaced(name, cell), name)

    async def displace_refused(self, name: Name, cell: Cell, error: BrokerError) -> None:
        """Displaces what was placed, and was refused; not what may have been created without an answer."""
        if not isinstance(error, StorageUnavailable):
            with suppress(StorageUnavailable):
                await self.displace(name, cell)

    async def _displaced(self, name: Name, cell: Cell) -> None:
        try:
            await self._displace(name, cell)
        except BrokerError as error:
            logger.warning("a name may be refused by home until it is asked for again: %s", error)
            raise

    async def _displace(self, name: Name, cell: Cell) -> None:
        if cell.finds is None or await self._cells.has(cell, name):
            return
        await self._placing.withdraw(name, cell.number)
        # It may have been created in the meantime. Until this is known, home refuses it.
        if await self._cells.has(cell, name):
            with suppress(AlreadyExists, Moved):
                await self.place_again(name, cell)
        else:
            await self._placing.store.readmit(name)

    async def end_displacing(self, names: Iterable[Name]) -> None:
        """Ends what another broker did not, with names that home refused or does not have: they are in no list.

        Raises:
            StorageUnavailable: a cell cannot be asked for one of them, and no other one has it.
        """
        held_up: StorageUnavailable | None = None
        for name in await self._placing.store.displaced(sorted(set(names))):
            try:
                await self._end_displacing(name)
            except StorageUnavailable as error:
                # The others need no cell that is away.
                held_up = held_up or error.as_outcome()
        if held_up is not None:
            raise held_up

    async def _end_displacing(self, name: Name) -> None:
        away: StorageUnavailable | None = None
        for cell in self._cells.each[1:]:
            try:
                found = await self._cells.has(cell, name)
            except StorageUnavailable as error:
                away = away or error.as_outcome()
                continue
            if found:
                with suppress(AlreadyExists, Moved):
                    await self.place_again(name, cell)
                return
        if away is not None:
            raise away
        await self._placing.store.readmit(name)

    async def to_its_end(self, work: Coroutine[Any, Any, ResultT], name: Name) -> ResultT:
        """Does something about a name that goes on when whoever waits for it has gone; its error is logged then."""
        task = asyncio.get_running_loop().create_task(work)
        self._finishing[task] = name
        task.add_done_callback(self._finishing.pop)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(partial(_log_unheard, name))
            raise

    async def finish(self, patience: float) -> None:
        """Waits some seconds for what nobody else waits for, when the broker stops; what is left then is given up."""
        until = time.monotonic() + patience
        # Some of it begins more.
        while self._finishing and (left := until - time.monotonic()) > 0:
            await asyncio.wait(list(self._finishing), timeout=left)
        for name in sorted(set(self._finishing.values())):
            logger.warning(
                "the broker stops before the %s is deleted to the end: home may refuse it until it is asked for again",
                name,
            )
        given_up = list(self._finishing)
        for task in given_up:
            task.cancel()
        await asyncio.gather(*given_up, return_exceptions=True)


def _log_unheard(name: Name, task: asyncio.Task[Any]) -> None:
    """Logs the error of a task for which nobody waits any more; what is not there is deleted."""
    if task.cancelled() or (error := task.exception()) is None or isinstance(error, NotFound):
        return
    logger.warning("what was done about the %s failed, and nobody waits for it any more: %s", name, error)
