"""Finds the cell of a call."""

from __future__ import annotations

from contextlib import aclosing, asynccontextmanager
from copy import copy
from shlex import quote
from typing import TYPE_CHECKING, Any

from broker.cells.cell import Cells
from broker.cells.naming import Naming
from broker.domain.access import Action, Kind
from broker.domain.cell import HOME_NUMBER, LATELY, Name, Placed, Placement, apart
from broker.errors import BrokerError, CellAway, Moved, NotFound, StorageUnavailable
from broker.services.rights import CALLER

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence

    from broker.cells.cell import Cell
    from broker.cells.placing import Placing


class Router:
    """The cells, and which of them a call is for.

    Attributes:
        placing: where names are.
        cells: the cells.
        names: keeps the list of placements true.
    """

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

        Of `max_calls` each cell gets a part (Cells).
        """
        self.placing = placing
        self.cells = Cells(cells, max_calls=max_calls)
        self.names = Naming(placing, self.cells)
        self._now = now
        self._creates_groups = creates_groups

    def for_operators(self) -> Router:
        """The same, without the limit: operators' calls, which have their own, and parts of calls go on."""
        return self._of(self.cells.without_limit())

    def for_look_ups(self, most: int) -> Router:
        """The same for calls that only look, of which there are at most so many."""
        return self._of(self.cells.counted_apart(most))

    def _of(self, cells: Cells) -> Router:
        own = copy(self)
        own.cells, own.names = cells, self.names.of(cells)
        return own

    def now(self) -> int:
        """The time (microseconds), which a look-up over cells takes before it asks the first of them."""
        return self._now()

    async def cell_of(self, names: Iterable[Name]) -> Cell:
        """The one cell in which names are.

        Raises:
            Refused: they are in several.
        """
        found = await self._together(set(names))
        cells = {placement.cell for placement in found.values()}
        if len(cells) > 1:
            raise apart(sorted(found))
        return self.cells.numbered(cells.pop() if cells else HOME_NUMBER)

    async def _together(self, names: set[Name]) -> dict[Name, Placement]:
        """Where names are; if that is not one cell, as the list says now: what was remembered is of several moments."""
        found = await self.placing.find(names)
        if len({placement.cell for placement in found.values()}) > 1:
            found = await self.placing.find(names, again=True)
        return found

    @asynccontextmanager
    async def cell_of_reader(
        self, reader: Name, topics: Iterable[Name], *, creates: bool = True
    ) -> AsyncIterator[tuple[Cell, list[Name]]]:
        """The cell of topics and of a group that reads them, or of a sink that writes them, and what must be there.

        A reader that does not exist yet is placed where the topics are, if the call is about to create it there. So is
        one that was placed, and never created: its topics may have moved since.

        Args:
            reader: the group or sink.
            topics: what it reads or writes.
            creates: whether the call creates a reader that does not exist.

        Raises:
            Refused: they are in several cells.
        """
        topics = set(topics)
        found = await self._together({reader, *topics})
        own, cells = found[reader], {found[name].cell for name in topics}
        if len(cells) > 1:
            raise apart(sorted(topics))
        cell = self.cells.numbered(cells.pop() if cells else own.cell)
        if own.cell == cell.number:
            if await self._lacks_sink(reader, cell):
                async with self.names.creating(reader, cell):
                    yield cell, [reader, *topics]
            else:
                yield cell, [reader, *topics]
            return
        there = self.cells.numbered(own.cell)
        if await self.cells.has(there, reader):
            raise _reader_apart(reader, topics, cell)
        # What cannot be created is refused by the cell.
        placed = creates and reader.allowed and self._may_create(reader)
        if placed and await self.names.placed_anew(reader, there, cell) is not cell:
            raise _reader_apart(reader, topics, cell)
        if placed and reader.kind is Placed.SINK and cell is not self.cells.home:
            async with self.names.creating(reader, cell):
                yield cell, [reader, *topics]
            return
        try:
            yield cell, [reader, *topics] if placed else [*topics]
        except BrokerError as error:
            if placed and cell is not self.cells.home:
                await self.names.displace_refused(reader, cell, error)
            raise

    async def _lacks_sink(self, reader: Name, cell: Cell) -> bool:
        """Whether a call for a sink is about to create it in another cell than home; of groups the cell tells that."""
        if reader.kind is not Placed.SINK or cell is self.cells.home or cell.finds is None:
            return False
        return not await self.cells.has(cell, reader)

    async def delete(self, name: Name, method: Callable[[Any], Callable[..., Awaitable[Any]]], *arguments: Any) -> Any:
        """Deletes something in its cell, by a method of the cell's servicers, and its place in the list.

        This comes to its end, though whoever asks for it may not wait: a place would be left of what is nowhere.
        """
        cell = await self.cell_of([name])
        if cell is self.cells.home:
            return await self.call(cell, [name], method, *arguments)
        return await self.names.to_its_end(self._delete(name, cell, method, *arguments), name)

    async def _delete(
        self, name: Name, cell: Cell, method: Callable[[Any], Callable[..., Awaitable[Any]]], *arguments: Any
    ) -> Any:
        try:
            answer = await self.call(cell, [name], method, *arguments)
        except NotFound:
            # What never came to be has a place, too.
            await self.names.displace(name, cell)
            raise
        await self.names.displace(name, cell)
        return answer

    def _may_create(self, name: Name) -> bool:
        if name.kind is Placed.SINK:
            return True
        return self._creates_groups and CALLER.get().may(Action.CREATE, Kind.GROUP, name.text)

    async def explained(self, error: NotFound, names: Iterable[Name], cell: Cell, began: int) -> BrokerError:
        """What a cell's NotFound means: the names may be moving, or this broker's list be out of date.

        `began` is the time before the cell was asked.

        Raises:
            StorageUnavailable: home does not answer, or a name may be in a cell that cannot be asked.
        """
        names = set(names)
        if cell is self.cells.home:
            # Where nothing is created by being named, nobody else is refused there.
            await self.names.end_displacing(names)
        await self.placing.find(names, again=True)
        return await self.moved(names, cell, await self.moved_names(names, began)) or error

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
            with self.cells.calling(cell) as servicers:
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
        if cell is self.cells.home:
            await self.names.end_displacing(wanted)

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
        async for answer in self._answers(self.cells.in_turn(first), method, *arguments):
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
        answers = [answer async for answer in self._answers(self.cells.each, method, *arguments)]
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
                with self.cells.calling(cell) as servicers:
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

    async def moved_lately(self, began: int) -> bool:
        """Whether something is away, or was since a moment before a time: that when the first cell was asked.

        A move has taken nothing before its seal, however long it copies.

        Raises:
            StorageUnavailable: a cell that a move leaves cannot be asked.
        """
        store, since = self.placing.store, began - LATELY
        if not await store.moved_lately(since):
            return False
        leaving = await store.open_moves()
        # Behind them: one that ends meanwhile is met here.
        if not leaving or await store.ended_lately(since):
            return True
        for move, number in leaving.items():
            cell = self.cells.numbered(number)
            with self.cells.calling(cell):
                if cell.was_sealed is None:
                    raise CellAway(cell.name)
                if await cell.was_sealed(move):
                    return True
        return False

    async def moved_names(self, names: Collection[Name], began: int) -> set[Name]:
        """Those leaving their cell, or in a move that has ended since a moment before a time, moved or not."""
        return await self.placing.store.moved_names(names, began - LATELY)


def _reader_apart(reader: Name, topics: Iterable[Name], cell: Cell) -> BrokerError:
    """The refusal of a group or sink whose topics are in a cell, and it in another one."""
    names = [reader, *sorted(topics)]
    if reader.kind is Placed.SINK:
        # One that was first named without topics is at home.
        command = f"halfmq cells move --to {cell.name} --sink {quote(reader.text)}"
        return apart(names, f"Move the sink to its topics: `{command}`.")
    return apart(names)
