"""Finds the cell of a call."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from copy import copy
from dataclasses import dataclass
from functools import partial
from shlex import quote
from typing import TYPE_CHECKING, Any, TypeVar

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
        Coroutine,
        Iterable,
        Iterator,
        Sequence,
    )

    from broker.cells.placing import Placing
    from broker.domain.lease import Receipt
    from broker.services.judges import Judge

logger = logging.getLogger("halfmq.broker")

ResultT = TypeVar("ResultT")


@dataclass(slots=True, eq=False)
class Cell:
    """A cell.

    Attributes:
        number, name: of the cell.
        servicers: what serves it; None while its database cannot be reached, since the broker started.
        stored_bytes: tells how much it has.
        finds: tells whether something exists there.
        let_in: lets it have names again that had left it by moves up to a number.
        has_receipts: tells whether some of these receipts are of leases there, of groups that the caller may settle
            for.
        was_sealed: tells whether a move that leaves it has taken something from it.
        busy: calls under way.
    """

    number: int
    name: str
    servicers: Any = None
    stored_bytes: Callable[[], Awaitable[int]] | None = None
    finds: Callable[[Name], Awaitable[bool]] | None = None
    let_in: Callable[[Sequence[Name], int], Awaitable[None]] | None = None
    has_receipts: Callable[[Sequence[Receipt], Judge | None], Awaitable[bool]] | None = None
    was_sealed: Callable[[int], Awaitable[bool]] | None = None
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
        self._finishing: dict[asyncio.Task[Any], Name] = {}

    def for_operators(self) -> Router:
        """The same, without the limit: operators' calls, which have their own, and parts of calls go on."""
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

    async def _has(self, cell: Cell, name: Name) -> bool:
        """Whether something is in a cell, which is a call for it as any other one.

        Raises:
            StorageUnavailable: it cannot be reached, or has too many calls under way.
        """
        with self.calling(cell):
            if cell.finds is None:
                raise CellAway(cell.name)
            return await cell.finds(name)

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
        cell = self.numbered(cells.pop() if cells else own.cell)
        if own.cell == cell.number:
            if await self._lacks_sink(reader, cell):
                async with self.creating(reader, cell):
                    yield cell, [reader, *topics]
            else:
                yield cell, [reader, *topics]
            return
        there = self.numbered(own.cell)
        if there.finds is None or await self._has(there, reader):
            raise _reader_apart(reader, topics, cell)
        # What cannot be created is refused by the cell.
        placed = creates and reader.allowed and self._may_create(reader)
        if placed and await self._placed_anew(reader, there, cell) is not cell:
            raise _reader_apart(reader, topics, cell)
        try:
            yield cell, [reader, *topics] if placed else [*topics]
        except BrokerError as error:
            if placed and cell is not self.home:
                await self._displace_refused(reader, cell, error)
            raise

    async def _lacks_sink(self, reader: Name, cell: Cell) -> bool:
        """Whether a call for a sink is about to create it in another cell than home; of groups the cell tells that."""
        if reader.kind is not Placed.SINK or cell is self.home or cell.finds is None:
            return False
        return not await self._has(cell, reader)

    @asynccontextmanager
    async def creating(self, name: Name, cell: Cell) -> AsyncIterator[None]:
        """Surrounds what creates something in a cell by being named there: it is in the list before.

        Where it was may be remembered, and it have been deleted and be at home by now.

        Raises:
            Moved: it is in another cell.
        """
        try:
            placed = await self.placing.place(name, cell.number)
        except AlreadyExists:
            raise Moved(name) from None
        if placed.cell != cell.number:
            raise Moved(name)
        try:
            yield
        except BrokerError as error:
            await self._displace_refused(name, cell, error)
            raise
        # Somebody may just have deleted another one, and its place.
        try:
            await self.place_again(name, cell)
        except AlreadyExists:
            raise Moved(name) from None

    async def _displace_refused(self, name: Name, cell: Cell, error: BrokerError) -> None:
        """Displaces what was placed, and was refused; not what may have been created without an answer."""
        if not isinstance(error, StorageUnavailable):
            with suppress(StorageUnavailable):
                await self.displace(name, cell)

    async def _placed_anew(self, reader: Name, before: Cell, cell: Cell) -> Cell:
        """Places what is not in its cell in another one; returns where it is placed then."""
        if before is not self.home:
            await self.displace(reader, before)
        if cell is self.home:
            placed = (await self.placing.find([reader], again=True))[reader]
        else:
            placed = await self.placing.place(reader, cell.number)
        return self.numbered(placed.cell)

    async def delete(self, name: Name, method: Callable[[Any], Callable[..., Awaitable[Any]]], *arguments: Any) -> Any:
        """Deletes something in its cell, by a method of the cell's servicers, and its place in the list.

        This comes to its end, though whoever asks for it may not wait: a place would be left of what is nowhere.
        """
        cell = await self.cell_of([name])
        if cell is self.home:
            return await self.call(cell, [name], method, *arguments)
        return await self._to_its_end(self._delete(name, cell, method, *arguments), name)

    async def _to_its_end(self, work: Coroutine[Any, Any, ResultT], name: Name) -> ResultT:
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

    async def _delete(
        self, name: Name, cell: Cell, method: Callable[[Any], Callable[..., Awaitable[Any]]], *arguments: Any
    ) -> Any:
        try:
            answer = await self.call(cell, [name], method, *arguments)
        except NotFound:
            # What never came to be has a place, too.
            await self.displace(name, cell)
            raise
        await self.displace(name, cell)
        return answer

    async def displace(self, name: Name, cell: Cell) -> None:
        """Takes a name from the list that is not in its cell: it was deleted, or its creation was refused.

        This comes to its end, though whoever asks for it may not wait for that: in between home refuses the name.
        """
        await self._to_its_end(self._displaced(name, cell), name)

    async def _displaced(self, name: Name, cell: Cell) -> None:
        try:
            await self._displace(name, cell)
        except BrokerError as error:
            logger.warning("a name may be refused by home until it is asked for again: %s", error)
            raise

    async def _displace(self, name: Name, cell: Cell) -> None:
        if cell.finds is None or await self._has(cell, name):
            return
        await self.placing.withdraw(name, cell.number)
        # It may have been created in the meantime. Until this is known, home refuses it.
        if await self._has(cell, name):
            with suppress(AlreadyExists, Moved):
                await self.place_again(name, cell)
        else:
            await self.placing.store.readmit(name)

    async def place_again(self, name: Name, cell: Cell) -> None:
        """Places what was in a cell a moment ago, and perhaps is in the list no more.

        Whoever deletes it meanwhile may take its place before it is placed here: what is in the cell no more loses it.

        Raises:
            AlreadyExists: there is one at home.
            Moved: there is one in another cell.
        """
        try:
            placed = self.numbered((await self.placing.place(name, cell.number)).cell)
        except AlreadyExists:
            await self._log_lost(name, cell, self.home)
            raise
        if placed is not cell:
            await self._log_lost(name, cell, placed)
            raise Moved(name)
        # It is there, whether that can be looked at now or not.
        with suppress(StorageUnavailable):
            await self.displace(name, cell)

    async def _log_lost(self, name: Name, cell: Cell, other: Cell) -> None:
        """Logs what is in a cell, and in the list in another one."""
        if await self._has(cell, name):
            logger.error(
                "The %s is in the cell %s and in the cell %s: that in the former is found by nobody.",
                name,
                cell.name,
                other.name,
            )

    async def end_displacing(self, names: Iterable[Name]) -> None:
        """Ends what another broker did not, with names that home refused or does not have: they are in no list.

        Raises:
            StorageUnavailable: a cell cannot be asked for one of them, and no other one has it.
        """
        held_up: StorageUnavailable | None = None
        for name in await self.placing.store.displaced(sorted(set(names))):
            try:
                await self._end_displacing(name)
            except StorageUnavailable as error:
                # The others need no cell that is away.
                held_up = held_up or error.as_outcome()
        if held_up is not None:
            raise held_up

    async def _end_displacing(self, name: Name) -> None:
        away: StorageUnavailable | None = None
        for cell in self.cells[1:]:
            try:
                found = await self._has(cell, name)
            except StorageUnavailable as error:
                away = away or error.as_outcome()
                continue
            if found:
                with suppress(AlreadyExists, Moved):
                    await self.place_again(name, cell)
                return
        if away is not None:
            raise away
        await self.placing.store.readmit(name)

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

        Raises:
            StorageUnavailable: home does not answer, or a name may be in a cell that cannot be asked.
        """
        names = set(names)
        if cell is self.home:
            # Where nothing is created by being named, nobody else is refused there.
            await self.end_displacing(names)
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
        if cell is self.home:
            await self.end_displacing(wanted)

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
            cell = self.numbered(number)
            with self.calling(cell):
                if cell.was_sealed is None:
                    raise CellAway(cell.name)
                if await cell.was_sealed(move):
                    return True
        return False

    async def moved_names(self, began: int) -> set[Name]:
        """What is leaving its cell, or was in a move that has ended since a moment before a time, moved or not."""
        return await self.placing.store.moved_names(began - LATELY)


def _reader_apart(reader: Name, topics: Iterable[Name], cell: Cell) -> BrokerError:
    """The refusal of a group or sink whose topics are in a cell, and it in another one."""
    names = [reader, *sorted(topics)]
    if reader.kind is Placed.SINK:
        # One that was first named without topics is at home.
        command = f"halfmq cells move --to {cell.name} --sink {quote(reader.text)}"
        return apart(names, f"Move the sink to its topics: `{command}`.")
    return apart(names)


def _log_unheard(name: Name, task: asyncio.Task[Any]) -> None:
    """Logs the error of a task for which nobody waits any more; what is not there is deleted."""
    if task.cancelled() or (error := task.exception()) is None or isinstance(error, NotFound):
        return
    logger.warning("what was done about the %s failed, and nobody waits for it any more: %s", name, error)
