"""`halfmq bench writes`: rows and bytes that the database server writes for one message, against its payload."""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broker.errors import BrokerError
from halfmq_cli.bench.bare_storage import BareStorage
from halfmq_cli.bench.databases import side_by_side
from halfmq_cli.bench.floor import InsertFloor
from halfmq_cli.bench.load import QUEUES, body_of, marked
from halfmq_cli.bench.options import DatabaseUrl, Json, Size  # noqa: TC001 - typer reads them
from halfmq_cli.bench.report import print_table
from halfmq_cli.bench.write_counters import FIGURES, Counts, WriteCounters, Written
from halfmq_cli.serving import fail

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

_NUMBERS = {"rows_inserted", "rows_updated", "rows_deleted", "commits", "redo_syncs", "data_syncs"}
TOGETHER = 256
"""Transactions, or messages, of a batch."""
ALONE = 64
"""Lone ones that are measured in place of a batch."""
IDLE = "nothing for 1 s"
"""What others, and the server itself, write in a second."""
LEAD = 5.0
"""Seconds until delayed messages are due."""
AMPLIFIED = {
    "redo_bytes": "redo",
    "redo_written_bytes": "redo_written",
    "binlog_bytes": "binlog",
    "page_bytes": "pages",
}
"""Figures in bytes that are compared with the payload, and the names of the quotients."""


@dataclass(slots=True)
class _Operation:
    """What is measured.

    Attributes:
        run: does it as often as it is told.
        every: how often it is done in place of a batch.
        prepare: what has to be there before, and is not counted.
        taken: by counter, of each part, for one operation.
        rows: by table the rows inserted, updated and deleted for one operation, of each part.
    """

    run: Callable[[int], Awaitable[object]]
    every: int = TOGETHER
    prepare: Callable[[int], Awaitable[object]] | None = None
    taken: list[dict[str, float | None]] = field(default_factory=list)
    rows: list[dict[str, tuple[float, ...]] | None] = field(default_factory=list)

    async def measure(self, counters: WriteCounters, times: int, before: Written | None) -> Written:
        """Measures a part; takes the settled counters behind the part before it, and returns those behind this one."""
        count = self.every * times
        if self.prepare is not None:
            await self.prepare(count)
        if before is None or self.prepare is not None:
            before = await asyncio.to_thread(counters.settled)
        await self.run(count)
        after = await asyncio.to_thread(counters.settled)
        self.taken.append(_each(after.since(before), count))
        rows = after.rows_since(before)
        self.rows.append(
            None if rows is None else {table: tuple(n / count for n in changed) for table, changed in rows.items()}
        )
        return after

    def figures(self, size: int) -> dict[str, float | None]:
        """The median of all parts, and the bytes by those of the payload."""
        shown: dict[str, float | None] = {}
        for name in FIGURES:
            values = [each for part in self.taken if (each := part[name]) is not None]
            shown[name] = round(statistics.median(values), 4) if len(values) == len(self.taken) else None
        for name, quotient in AMPLIFIED.items():
            value = shown[name]
            shown[f"{quotient}_to_payload"] = None if value is None else round(value / size, 3)
        return shown

    def rows_by_table(self) -> dict[str, dict[str, float]] | None:
        """The median of all parts: rows inserted, updated and deleted for one operation."""
        if None in self.rows:
            return None
        parts = [part for part in self.rows if part is not None]
        tables = sorted({table for part in parts for table in part})
        kinds = ("inserted", "updated", "deleted")
        return {
            table: {
                kind: round(statistics.median([part.get(table, (0.0, 0.0, 0.0))[n] for part in parts]), 4)
                for n, kind in enumerate(kinds)
            }
            for table in tables
        }


def _each(counts: Counts, count: int) -> dict[str, float | None]:
    return {name: None if value is None else value / count for name, value in counts.items()}


def writes(
    database: DatabaseUrl = None,
    size: Size = 1024,
    operations: Annotated[int, typer.Option(min=1, help="Batches of 256 in a part, and as many times 64 alone.")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="Parts of each operation; the median counts.")] = 3,
    messages: Annotated[int, typer.Option(min=0, help="Messages after which indexes are measured.")] = 20_000,
    keys: Annotated[int, typer.Option(min=0, max=16, help="Business keys of each message.")] = 0,
    json_output: Json = False,
) -> None:
    """Count what the database server writes for a transaction, a send, a retention, and so on.

    The server counts for all its users: nothing else should use it meanwhile. The broker's storage runs in the
    command's own process, without loops in the background. A plain INSERT of the same row is the floor.
    """
    try:
        with ExitStack() as stack:
            (url, index_url), shown = stack.enter_context(side_by_side(database, 2))
            figures = asyncio.run(_measure(url, size, keys, operations, rounds))
            figures |= asyncio.run(_indexes(index_url, size, keys, messages))
    except BrokerError as error:
        fail(error)
    figures |= {"database": shown, "size_bytes": size, "keys": keys, "rounds": rounds}
    if json_output:
        sys.stdout.write(json.dumps(figures) + "\n")
    else:
        _show(figures)


def _show(figures: Mapping[str, Any]) -> None:
    title = f"{figures['database']}, bodies of {figures['size_bytes']} bytes: for each operation"
    counted, sized = {}, {}
    for name, operation in figures["operations"].items():
        counted[name] = {figure: value for figure, value in operation.items() if figure in _NUMBERS}
        sized[name] = {figure: value for figure, value in operation.items() if figure not in _NUMBERS}
    print_table(title, "operation", counted)
    print_table(title, "operation", sized)
    if figures["rows"] is None:
        sys.stdout.write("Rows by table are not counted: performance_schema is off.\n")
    else:
        print_table(
            "rows for each operation: inserted, updated, deleted",
            "operation: table",
            {
                f"{name}: {table}": rows
                for name, by_table in figures["rows"].items()
                for table, rows in by_table.items()
            },
        )
    if figures["not_counted"]:
        sys.stdout.write(f"This server does not count: {', '.join(figures['not_counted'])}.\n")
    print_table(f"indexes after {figures['messages']} messages: bytes a message", "index", figures["indexes"])
    for name, value in figures["settings"].items():
        sys.stdout.write(f"{name} = {value}\n")


async def _measure(url: str, size: int, keys: int, times: int, rounds: int) -> dict[str, Any]:
    bare = BareStorage(url, size=size, queues=1, keys=keys)
    with closing(InsertFloor(url, marked(0, body_of(size)))) as floor, closing(WriteCounters(url)) as counters:
        await bare.start()
        try:
            operations = _operations(bare, floor)
            behind: Written | None = None
            for each in operations.values():
                # Statements are known, and offsets are guessed, from the second part on.
                behind = await each.measure(counters, times, behind)
                each.taken.clear()
                each.rows.clear()
            for _ in range(rounds):
                for each in operations.values():
                    behind = await each.measure(counters, times, behind)
            settings = counters.settings()
        finally:
            await bare.close()
    shown = {name: each.figures(size) for name, each in operations.items()}
    rows = {name: each.rows_by_table() for name, each in operations.items()}
    return {
        "operations": shown,
        "rows": None if None in rows.values() else rows,
        "not_counted": [name for name in FIGURES if any(each[name] is None for each in shown.values())],
        "settings": settings,
    }


def _operations(bare: BareStorage, floor: InsertFloor) -> dict[str, _Operation]:
    async def alone(one: Callable[[], Awaitable[object]], count: int) -> None:
        for _ in range(count):
            await one()

    async def in_batches(batch: Callable[[], Awaitable[object]], count: int) -> None:
        await alone(batch, count // TOGETHER)

    async def transact_and_consume(count: int) -> None:
        await bare.transact(count)
        await bare.consume(count)

    async def prepare_and_roll_back(count: int) -> None:
        await bare.decide(await bare.prepare(count), commit=False)

    async def consume_all() -> None:
        await bare.consume(sum(state.lag for state in await bare.store.queue_states(bare.topic, bare.group)))

    async def delay(count: int) -> None:
        due = bare.store.clock.now() + int(LEAD * 1e6)
        await in_batches(lambda: bare.send(TOGETHER, due), count)
        await asyncio.sleep(max(0.0, (due - bare.store.clock.now()) / 1e6))
        moved, last = 0, -1
        while last:
            last = (await bare.store.move_due()).count
            moved += last
        if moved != count:
            raise RuntimeError(f"{count - moved} of {count} messages were sent too late to be delayed")

    async def drop_everything() -> None:
        expired = replace(bare.topic, retention=0)
        for queue_id in bare.topic.queue_ids:
            while await bare.store.trim_queue(expired, queue_id):
                pass
        while await bare.store.trim_ops(0):
            pass
        while await bare.store.trim_events(0):
            pass

    async def fill(count: int) -> None:
        await consume_all()
        await drop_everything()
        await in_batches(lambda: transact_and_consume(TOGETHER), count)

    async def insert(count: int, batch: int) -> None:
        await asyncio.to_thread(floor.write, count, batch)

    def lone(
        one: Callable[[], Awaitable[object]], prepare: Callable[[int], Awaitable[object]] | None = None
    ) -> _Operation:
        return _Operation(lambda count: alone(one, count), ALONE, prepare)

    def batches(
        batch: Callable[[], Awaitable[object]], prepare: Callable[[int], Awaitable[object]] | None = None
    ) -> _Operation:
        return _Operation(lambda count: in_batches(batch, count), prepare=prepare)

    return {
        "plain INSERT, alone": _Operation(lambda count: insert(count, 1), ALONE),
        f"plain INSERT, {TOGETHER}": _Operation(lambda count: insert(count, TOGETHER)),
        "transaction, alone": lone(lambda: bare.transact(1)),
        "transaction consumed, alone": lone(lambda: transact_and_consume(1), lambda _: consume_all()),
        f"transactions, {TOGETHER}": batches(lambda: bare.transact(TOGETHER)),
        f"transactions consumed, {TOGETHER}": batches(lambda: transact_and_consume(TOGETHER), lambda _: consume_all()),
        "send, alone": lone(lambda: bare.send(1)),
        f"sends, {TOGETHER}": batches(lambda: bare.send(TOGETHER)),
        "rollback, alone": lone(lambda: prepare_and_roll_back(1)),
        f"rollbacks, {TOGETHER}": batches(lambda: prepare_and_roll_back(TOGETHER)),
        f"delayed messages, {TOGETHER}": _Operation(delay),
        "retention": _Operation(lambda _: drop_everything(), prepare=fill),
        IDLE: _Operation(asyncio.sleep, 1),
    }


async def _indexes(url: str, size: int, keys: int, messages: int) -> dict[str, Any]:
    """Fills the tables with transactions in batches, all consumed, and measures the indexes."""
    bare = BareStorage(url, size=size, queues=QUEUES, keys=keys)
    with closing(WriteCounters(url)) as counters:
        await bare.start()
        try:
            empty = counters.index_bytes()
            batches = max(1, messages // TOGETHER)
            for _ in range(batches):
                await bare.transact(TOGETHER)
                await bare.consume(TOGETHER)
            await asyncio.to_thread(counters.settled)
            full = counters.index_bytes()
        finally:
            await bare.close()
    count = batches * TOGETHER
    grown = {
        index: {name: None if value is None else round(value / count, 2) for name, value in sizes.items()}
        for index, sizes in full.items()
        if sizes != empty[index]
    }
    return {"indexes": grown, "messages": count}
