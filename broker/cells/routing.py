"""Finds the cell of a call."""

from __future__ import annotations

import sys
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from broker.domain.access import Action, Kind
from broker.domain.cell import HOME_NUMBER, LATELY, LONGEST_SHOWN, Name, Placed, Placement, apart
from broker.errors import AlreadyExists, BrokerError, CellAway, InvalidArgument, Moved, NotFound, StorageUnavailable
from broker.services.rights import CALLER

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        AsyncIterator,
        Awaitable,
        Callable,
        Collection,
        Iterable,
        Iterator,
        Sequence,
    )

    from broker.cells.placing import Placing


@dataclass(slots=True, eq=False)
class Cell:
    """A cell.

    Attributes:
        number, name: of the cell.
        servicers: what serves it; None while its database cannot be reached, since the broker started.
        stored_bytes: tells how much it has.
        finds: tells whether something exists there.
        let_in: lets it have names again that had left it by moves up to a number.
        busy: calls under way.
    """

    number: int
    name: str
    servicers: Any = None
    stored_bytes: Callable[[], Awaitable[int]] | None = None
    finds: Callable[[Name], Awaitable[bool]] | None = None
    let_in: Callable[[Sequence[Name], int], Awaitable[None]] | None = None
    busy: int = 0


class Router:
    """The cells, and which of them a call is for."""

    def __init__(
        self,
        placing: Placing,
        cells: Sequence[Cell],
        now: Callable[[], int],
        *,
        creates_groups: bool,
        max_calls: int,
    ) -> None:
        """Takes the placements, the cells (home is the first one), the clock, and whether groups are made when named.

        A cell gets at most half of `max_calls` at a time: one that does not answer keeps no place from the others.
        """
        self.placing = placing
        self.cells = list(cells)
        self._by_number = {cell.number: cell for cell in cells}
        self._now = now
        self._creates_groups = creates_groups
        self._most = max(1, max_calls // 2)

    def for_operators(self) -> Router:
        """The same, without the limit: operators' calls and look-ups, which have their own, go on."""
        own = copy(self)
        own._most = sys.maxsize
        return own

    def now(self) -> int:
        """The time (microseconds), which a look-up over cells takes before it asks the first of them."""
        return self._now()

    @property
    def home(self) -> Cell:
        """The cell of the home database."""
        return self.cells[0]

    def numbered(self, number: int) -> Cell:
        """A cell by its number.

        Raises:
            StorageUnavailable: this broker does not know it yet.
        """
        found = self._by_number.get(number)
        if found is None:
            raise StorageUnavailable("The cell is new, and this broker does not know it: name it in `cells`.")
        return found

    def named(self, name: str, field: str) -> Cell:
        """A cell by its name.

        Raises:
            InvalidArgument: there is none.
        """
        for cell in self.cells:
            if cell.name == name:
                return cell
        known = ", ".join(cell.name for cell in self.cells)
        raise InvalidArgument(f"There is no cell {name[:LONGEST_SHOWN]!r}; there are {known}.", field=field)

    @contextmanager
    def calling(self, cell: Cell) -> Iterator[Any]:
        """The servicers of a cell, for a call.

        Raises:
            StorageUnavailable: it cannot be reached, or has too many calls under way.
        """
        if cell.servicers is None:
            raise CellAway(cell.name)
        if cell.busy >= self._most:
            raise StorageUnavailable(f"{cell.busy} calls for the cell {cell.name!r} are under way; come back.")
        cell.busy += 1
        try:
            yield cell.servicers
        finally:
            cell.busy -= 1

    async def cell_of(self, names: Iterable[Name]) -> Cell:
        """The one cell in which names are.

        Raises:
            Refused: they are in several.
        """
        found = await self._together(set(names))
        cells = {placement.cell for placement in found.values()}
        if len(cells) > 1:
            raise apart(sorted(found))
        return self.numbered(cells.pop() if cells else HOME_NUMBER)

    async def _together(self, names: set[Name]) -> dict[Name, Placement]:
        """Where names are; if that is not one cell, as the list says now: what was remembered is of several moments."""
        found = await self.placing.find(names)
        if len({placement.cell for placement in found.values()}) > 1:
            found = await self.placing.find(names, again=True)
        return found

    @asynccontextmanager
    async def cell_of_reader(self, reader: Name, topics: Iterable[Name]) -> AsyncIterator[tuple[Cell, list[Name]]]:
        """The cell of topics and of a group that reads them, or of a sink that writes them, and what must be there.

        A reader that does not exist yet is placed where the topics are, if the call is about to create it there. So is
        one that was placed, and never created: its topics may have moved since.

        Raises:
            Refused: they are in several cells.
        """
        topics = set(topics)
        found = await self._together({reader, *topics})
        own, cells = found[reader], {found[name].cell for name in topics}
        if len(cells) > 1:
            raise apart(sorted(topics))
        cell = self.numbered(cells.pop() if cells else own.cell)
        if own.cell == cell.number:
            yield cell, [reader, *topics]
            return
        there = self.numbered(own.cell)
        if there.finds is None or await there.finds(reader):
            raise apart([reader, *sorted(topics)])
        # What cannot be created is refused by the cell.
        placed = reader.allowed and self._may_create(reader)
        if placed and await self._placed_anew(reader, there, cell) is not cell:
            raise apart([reader, *sorted(topics)])
        try:
            yield cell, [reader, *topics] if placed else [*topics]
        except BrokerError as error:
            if placed and cell is not self.home and not isinstance(error, StorageUnavailable):
                await self.displace(reader, cell)
            raise

    async def _placed_anew(self, reader: Name, before: Cell, cell: Cell) -> Cell:
        """Places what is not in its cell in another one; returns where it is placed then."""
        if before is not self.home:
            await self.displace(reader, before)
        if cell is self.home:
            placed = (await self.placing.find([reader], again=True))[reader]
        else:
            placed = await self.placing.place(reader, cell.number)
        return self.numbered(placed.cell)

    async def displace(self, name: Name, cell: Cell) -> None:
        """Takes a name from the list that is not in its cell: it was deleted, or its creation was refused."""
        if cell.finds is None or await _has(cell, name):
            return
        await self.placing.withdraw(name, cell.number)
        # It may have been created in the meantime.
        if await _has(cell, name):
            with suppress(AlreadyExists):
                await self.placing.place(name, cell.number)

    def _may_create(self, name: Name) -> bool:
        if name.kind is Placed.SINK:
            return True
        return self._creates_groups and CALLER.get().may(Action.CREATE, Kind.GROUP, name.text)

    async def least_loaded(self) -> Cell:
        """The cell with the fewest bytes, of those that can be reached."""
        loads: list[tuple[int, int]] = []
        for cell in self.cells:
            if cell.servicers is None or cell.stored_bytes is None:
                continue
            try:
                loads.append((await cell.stored_bytes(), cell.number))
            except StorageUnavailable:
                continue
        if not loads:
            raise StorageUnavailable("No cell can be reached.")
        return self.numbered(min(loads)[1])

    async def explained(self, error: NotFound, names: Iterable[Name], cell: Cell, began: int) -> BrokerError:
        """What a cell's NotFound means: the names may be moving, or this broker's list be out of date.

        `began` is the time before the cell was asked.
        """
        names = set(names)
        await self.placing.find(names, again=True)
        return await self.moved(names, cell, await self.moved_names(began)) or error

    async def moved(self, names: Iterable[Name], cell: Cell, lately: Collection[Name]) -> Moved | None:
        """What tells of names that are not in a cell, or will not be there; None: they are, by the list.

        Those that moved lately may have been away meanwhile.
        """
        for name, placement in (await self.placing.find(names)).items():
            if placement.move is not None or placement.cell != cell.number or name in lately:
                return Moved(name)
        return None

    async def call(
        self, cell: Cell, names: Iterable[Name], method: Callable[[Any], Callable[..., Awaitable[Any]]], *arguments: Any
    ) -> Any:
        """Calls a method of a cell's servicers, for what is there."""
        began = self.now()
        try:
            with self.calling(cell) as servicers:
                return await method(servicers)(*arguments)
        except NotFound as error:
            found = await self.explained(error, names, cell, began)
        except Moved:
            await self._let_in(cell, names)
            raise
        raise found

    async def call_there(
        self, names: Collection[Name], method: Callable[[Any], Callable[..., Awaitable[Any]]], *arguments: Any
    ) -> Any:
        """Calls a method of the servicers of the one cell in which names are."""
        return await self.call(await self.cell_of(names), names, method, *arguments)

    async def _let_in(self, cell: Cell, names: Iterable[Name]) -> None:
        """Has a cell that refused to create what had left it take it, if it is placed there again; the call comes back.

        So it is with a name that was moved away, deleted, and is created in its first cell.
        """
        wanted = sorted(set(names))
        placed, last_move = await self.placing.store.placed_now(wanted)
        again = [name for name in wanted if placed.get(name) == Placement(cell.number)]
        if again and cell.let_in is not None:
            await cell.let_in(again, last_move)

    async def stream(
        self,
        cell: Cell,
        names: Iterable[Name],
        method: Callable[[Any], Callable[..., AsyncIterator[Any]]],
        *arguments: Any,
    ) -> AsyncGenerator[Any, None]:
        """The answers of a method of a cell's servicers that streams them. Streams are bounded elsewhere."""
        if cell.servicers is None:
            raise CellAway(cell.name)
        began = self.now()
        responses: Any = method(cell.servicers)(*arguments)
        try:
            async for response in responses:
                yield response
            return
        except NotFound as error:
            found = await self.explained(error, names, cell, began)
        except Moved:
            await self._let_in(cell, names)
            raise
        finally:
            await responses.aclose()
        raise found

    async def stream_there(
        self, names: Collection[Name], method: Callable[[Any], Callable[..., AsyncIterator[Any]]], *arguments: Any
    ) -> AsyncGenerator[Any, None]:
        """The answers of a method of the servicers of the one cell in which names are."""
        answers = self.stream(await self.cell_of(names), names, method, *arguments)
        async with aclosing(answers):
            async for answer in answers:
                yield answer

    async def first_found(
        self,
        method: Callable[[Any], Callable[..., Awaitable[Any]]],
        *arguments: Any,
        first: Cell | None = None,
        is_whole: Callable[[Any], bool] = lambda _: True,
        joined: Callable[[Any, Any], Any] = lambda found, _: found,
    ) -> Any:
        """The answer of the first cell that does not answer NotFound: for what no list has, such as a transaction.

        Args:
            method: of the servicers.
            arguments: for it.
            first: where to begin; home otherwise.
            is_whole: whether an answer has all that there is to know; otherwise other cells are asked, too.
            joined: makes one of two answers.

        Raises:
            NotFound: of all cells.
            StorageUnavailable: one that could not be asked may have it.
        """
        began = self.now()
        found: Any = None
        refusals: list[BrokerError] = []
        async for answer in self._answers(self.in_turn(first), method, *arguments):
            if isinstance(answer, BrokerError):
                refusals.append(answer)
                continue
            found = answer if found is None else joined(found, answer)
            if is_whole(found):
                return found
        await self._check_missing(refusals, [] if found is None else [found], began)
        return found

    async def all_found(
        self,
        method: Callable[[Any], Callable[..., Awaitable[Any]]],
        *arguments: Any,
        is_whole: Callable[[Any], bool],
    ) -> list[Any]:
        """The answers of all cells that know something, of those that can be reached.

        Raises:
            NotFound: of all cells.
            StorageUnavailable: no answer is whole, and a cell that could not be asked may have one that is.
        """
        began = self.now()
        answers = [answer async for answer in self._answers(self.cells, method, *arguments)]
        found = [answer for answer in answers if not isinstance(answer, BrokerError)]
        if not any(map(is_whole, found)):
            await self._check_missing([answer for answer in answers if isinstance(answer, BrokerError)], found, began)
        return found

    async def _answers(
        self, cells: Iterable[Cell], method: Callable[[Any], Callable[..., Awaitable[Any]]], *arguments: Any
    ) -> AsyncGenerator[Any, None]:
        """The answer of each cell, or that it does not have it, or cannot be asked."""
        for cell in cells:
            try:
                with self.calling(cell) as servicers:
                    answer = await method(servicers)(*arguments)
            except (NotFound, StorageUnavailable) as error:
                answer = error.as_outcome()
            yield answer

    async def _check_missing(self, refusals: Sequence[BrokerError], found: Sequence[Any], began: int) -> None:
        """What it means that some cells, asked since a time, do not have something, and the others not all of it.

        Raises:
            NotFound: no cell has it.
            StorageUnavailable: it may be in a cell that could not be asked, or on its way.
        """
        if found and not await self.placing.store.moved_lately(0):
            # Nothing has ever moved: there is no more of it, as when its topic was deleted.
            return
        for refusal in refusals:
            if isinstance(refusal, StorageUnavailable):
                raise refusal
        if await self.moved_lately(began):
            raise Moved("transaction or lease, or what it is for,")
        if not found:
            raise refusals[0]

    def in_turn(self, first: Cell | None = None) -> list[Cell]:
        """All cells, one of them first."""
        return self.cells if first is None else [first, *[cell for cell in self.cells if cell is not first]]

    async def moved_lately(self, began: int) -> bool:
        """Whether something is moving, or was since a moment before a time: that when the first cell was asked."""
        return await self.placing.store.moved_lately(began - LATELY)

    async def moved_names(self, began: int) -> set[Name]:
        """What moved, or was to move, and has ended that since a moment before a time."""
        return await self.placing.store.moved_names(began - LATELY)


async def _has(cell: Cell, name: Name) -> bool:
    return cell.finds is not None and await cell.finds(name)
