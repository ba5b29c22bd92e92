"""`halfmq bench history`: the cost of a long past.

The same work is measured in turns on two databases of one server, one almost empty and one with a long past, so that
changes of the machine's speed affect both.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broker.domain.transaction import TransactionState
from broker.errors import BrokerError, ConfigurationError
from broker.maintenance.retention import TASK, RetentionSweeper
from broker.maintenance.transaction_checker import TransactionChecker
from broker.maintenance.turn_keeper import Turn
from broker.ports.queries import MessageSearch
from broker.ports.transactions import TransactionFilter
from broker.services.producing.check_sessions import CheckSession, CheckSessions
from halfmq_cli.bench.bare_storage import FOR_EVER, BareStorage
from halfmq_cli.bench.databases import buffer_pool_bytes, schema_bytes, settle, side_by_side
from halfmq_cli.bench.installation import Installation
from halfmq_cli.bench.load import QUEUES
from halfmq_cli.bench.long_past import GROUPS, SPAN, Past
from halfmq_cli.bench.options import DatabaseUrl, Json, Size  # noqa: TC001 - typer reads them
from halfmq_cli.bench.processes import BrokerProcess
from halfmq_cli.bench.report import print_table
from halfmq_cli.bench.surroundings import Surroundings
from halfmq_cli.serving import fail

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

TOGETHER, BATCHES, ALONE = 256, 4, 64
"""Of a turn: items of a batch, batches, and items that are alone."""
CONSUMED = 8_192
"""Messages that a new group consumes in a turn, the newest ones."""
LOOK_UPS, PAGES = 200, 5
PAGE, PARKED_PAGE = 100, 2
"""Transactions of a page; few are parked."""
EXPIRED = 1_000
"""Messages, op records, that one pass of retention deletes, about."""
SHORT_RETAINED_LEAST, SHORT_PENDING = 10_000, 1_000
MOST_STARTS = 7
PAST = "look-up by id, any of the past"
"""Reads whatever page, so it tells of the buffer pool."""


def history(
    database: DatabaseUrl = None,
    retained: Annotated[int, typer.Option(min=SHORT_RETAINED_LEAST, help="Messages that are kept.")] = 200_000,
    pending: Annotated[int, typer.Option(min=SHORT_PENDING, help="Transactions without a verdict.")] = 20_000,
    topics: Annotated[int, typer.Option(min=0, help="Further topics, with four queues each.")] = 0,
    progress: Annotated[int, typer.Option(min=0, help="Rows of groups' progress in these queues.")] = 0,
    due: Annotated[int, typer.Option(min=1, help="Further ones, of which a pass of the checker asks.")] = 1_000,
    size: Size = 150,
    rounds: Annotated[int, typer.Option(min=2, help="Measurements of each kind.")] = 15,
    json_output: Json = False,
) -> None:
    """Measure what a long past costs: the same work with it and almost without, in turns, on one server.

    The full scale is --retained 10000000 --pending 1000000 --topics 10000 --progress 100000; it takes about 5 GB and
    minutes to fill.
    """
    if progress and not topics:
        fail(ConfigurationError("--progress needs --topics: it is in their queues.", field="progress"))
    others = Installation(topics, progress)
    try:
        with side_by_side(database, 2) as (urls, shown):
            figures = asyncio.run(_run(urls, retained, pending, others, due, size, rounds))
    except BrokerError as error:
        fail(error)
    figures |= {"pending": pending, "retained": retained, "topics": topics, "progress": progress}
    figures |= {"due": due, "size_bytes": size, "database": shown}
    if json_output:
        sys.stdout.write(json.dumps(figures) + "\n")
        return
    title = f"{shown}: {retained:,} messages, {pending:,} pending transactions"
    title += f", {topics:,} further topics, {progress:,} rows of progress" if topics else ""
    print_table(title, "work", figures.pop("work"))
    for name, value in figures.items():
        sys.stdout.write(f"{name:>24}  {value}\n")


async def _run(
    urls: list[str], retained: int, pending: int, others: Installation, due: int, size: int, rounds: int
) -> dict[str, Any]:
    step = SPAN // retained
    # Each round deletes some of the past.
    least = SHORT_RETAINED_LEAST + (rounds + 1) * EXPIRED
    short, long = [_Side(url, size, due) for url in urls]
    sides = {
        short: Past.of(min(least, retained), SHORT_PENDING, step),
        long: Past.of(max(least, retained), pending, step),
    }
    times: dict[_Side, dict[str, list[float]]] = {side: {} for side in sides}
    try:
        began = time.monotonic()
        for side, past in sides.items():
            await side.prepare(past)
        await asyncio.to_thread(others.fill, long.bare)
        filled = time.monotonic() - began
        await asyncio.to_thread(settle, long.bare.database)
        for turn in range(rounds + 1):
            for name in short.work:
                if name == "start of a broker" and turn > MOST_STARTS:
                    continue
                for side in (short, long) if turn % 2 else (long, short):
                    taken = await side.work[name]()
                    if turn:  # The first round warms up.
                        times[side].setdefault(name, []).append(taken)
        sizes = [schema_bytes(side.bare.database) for side in (short, long)]
        pool = buffer_pool_bytes(long.bare.database)
    finally:
        await short.close()
        await long.close()
    return {
        "work": {name: _compared(times[short][name], times[long][name]) for name in short.work},
        "short_retained": sides[short].retained,
        "short_pending": sides[short].pending,
        "short_bytes": sizes[0],
        "long_bytes": sizes[1],
        "buffer_pool_bytes": pool,
        "filled_s": round(filled, 1),
        "rounds": rounds,
    }


def _compared(few: list[float], many: list[float]) -> dict[str, float]:
    short, long = _fast(few), _fast(many)
    return {"short_ms": round(short * 1000, 3), "long_ms": round(long * 1000, 3), "ratio": round(short / long, 3)}


def _fast(times: list[float]) -> float:
    """The first quartile. Other work on the machine only adds time, up to a factor of two, to half of the rounds."""
    return statistics.quantiles(times, n=4, method="inclusive")[0]


class _Side:
    """One of the two databases, with a storage, a checker, and the work that is measured.

    Attributes:
        work: by name; each does it once and returns seconds.
    """

    def __init__(self, url: str, size: int, due: int) -> None:
        self.bare = BareStorage(url, size=size, queues=QUEUES)
        self._url = url
        self._due = due
        self._random = random.Random(due)  # noqa: S311 - to choose messages
        self._sessions = CheckSessions()
        store = self.bare.store
        self._checker = TransactionChecker(store, self._sessions, self.bare.policy, store.clock)
        self._answering: asyncio.Task[None] | None = None
        self._groups = 0
        self._expired = self._deleted = 0
        self.work: Mapping[str, Callable[[], Awaitable[float]]] = {
            f"transactions, {TOGETHER} at a time": self._transactions,
            "transactions, one at a time": self._lone_transactions,
            f"sends, {TOGETHER} at a time": lambda: self._send(0),
            f"sends with a key, {TOGETHER} at a time": lambda: self._send(1),
            "consume": self._consume,
            "look-up by id": self._look_up_by_id,
            "look-up by key": self._look_up_by_key,
            PAST: self._look_up_any,
            "list of pending": lambda: self._list(PAGE),
            "list of parked": lambda: self._list(PARKED_PAGE, TransactionState.PARKED),
            "pass of the checker": self._check,
            "pass of retention": self._expire,
            "start of a broker": self._start,
            **Surroundings(self.bare).work,
        }

    async def prepare(self, past: Past) -> None:
        """Fills it."""
        self._past = past
        bare = self.bare
        await bare.start()
        groups = [bare.group.group_id]
        groups += [(await bare.new_group(f"past-{number}")).group_id for number in range(GROUPS)]
        owners = [await bare.store.producer_group_id(f"past-{number}") for number in range(GROUPS)]
        await asyncio.to_thread(past.fill, bare, groups, owners)
        await bare.prepare(self._due)
        session = CheckSession("bench")
        self._sessions.admit(session, bare.producer_group)
        self._answering = asyncio.create_task(_take_all(session))

    async def close(self) -> None:
        """Ends all."""
        if self._answering is not None:
            self._answering.cancel()
        await self.bare.close()

    async def _transactions(self) -> float:
        start = time.perf_counter()
        for _ in range(BATCHES):
            await self.bare.transact(TOGETHER)
        return time.perf_counter() - start

    async def _lone_transactions(self) -> float:
        start = time.perf_counter()
        for _ in range(ALONE):
            await self.bare.transact(1)
        return time.perf_counter() - start

    async def _send(self, keys: int) -> float:
        start = time.perf_counter()
        sent = [await self.bare.send(TOGETHER, keys=keys) for _ in range(BATCHES)]
        taken = time.perf_counter() - start
        self._sent = sent[-1]
        return taken

    async def _consume(self) -> float:
        self._groups += 1
        group = await self.bare.new_group(f"reader-{self._groups}")
        states = await self.bare.store.queue_states(self.bare.topic, group)
        for state, queue_id in zip(states, self.bare.topic.queue_ids, strict=True):
            await asyncio.to_thread(
                self.bare.change,
                "UPDATE group_progress SET next_offset = ? WHERE group_id = ? AND queue_id = ?",
                (state.max_offset - CONSUMED // QUEUES, group.group_id, queue_id),
            )
        start = time.perf_counter()
        for _ in range(0, CONSUMED, TOGETHER):
            await self.bare.consume(TOGETHER, group)
        return time.perf_counter() - start

    async def _look_up_by_id(self) -> float:
        start = time.perf_counter()
        for item in self._sent[:LOOK_UPS]:
            await self._find(item.message_id)
        return time.perf_counter() - start

    async def _look_up_any(self) -> float:
        # Without those that retention has deleted; some op records more, as time passes in a round.
        kept = range(self._deleted + EXPIRED, self._past.retained)
        ids = [self._past.id_of(self._random.choice(kept)) for _ in range(LOOK_UPS)]
        start = time.perf_counter()
        for each in ids:
            await self._find(each)
        return time.perf_counter() - start

    async def _find(self, message_id: bytes) -> None:
        found = await self.bare.store.find_message(message_id, 0)
        if found is None or found.message is None:
            raise RuntimeError("a message is not found")

    async def _look_up_by_key(self) -> float:
        start = time.perf_counter()
        for item in self._sent[:LOOK_UPS]:
            page = await self.bare.store.find_messages(MessageSearch(self.bare.topic, item.message.keys[0]))
            if len(page.messages) != 1:
                raise RuntimeError("a message is not found by its key")
        return time.perf_counter() - start

    async def _list(self, limit: int, state: TransactionState | None = None) -> float:
        start = time.perf_counter()
        wanted = TransactionFilter(state=state, limit=limit)
        for _ in range(PAGES):
            page = (await self.bare.store.list_transactions(wanted)).entries
            if len(page) != wanted.limit:
                raise RuntimeError("a page is not full")
            wanted.after = page[-1].transaction_id
        return time.perf_counter() - start

    async def _check(self) -> float:
        await asyncio.to_thread(
            self.bare.change,
            "UPDATE half_message SET check_due_at = 0 WHERE check_state = 1 AND producer_group_id = ?",
            (self.bare.producer_group,),
        )
        start = time.perf_counter()
        await self._checker.run_once()
        return time.perf_counter() - start

    async def _expire(self) -> float:
        """Deletes the oldest messages and op records, by their times."""
        self._expired += EXPIRED
        now = self.bare.store.clock.now()
        kept = now - self._past.time_of(self._expired)
        await asyncio.to_thread(self._set_retention, kept)
        turn = Turn(TASK)
        await turn.take(self.bare.store, 3600_000_000)
        sweeper = RetentionSweeper(self.bare.store, turn, keep_ops=kept, keep_events=kept, keep_leftovers=kept)
        start = time.perf_counter()
        await sweeper.run_once()
        taken = time.perf_counter() - start
        await asyncio.to_thread(self._set_retention, FOR_EVER)
        states = await self.bare.store.queue_states(self.bare.topic, None)
        self._deleted = sum(state.min_offset for state in states)
        if not self._expired <= self._deleted < 2 * self._expired:
            raise RuntimeError(f"{self._deleted} messages were deleted in place of {self._expired}")
        return taken

    def _set_retention(self, kept: int) -> None:
        self.bare.change("UPDATE topic SET retention = ? WHERE topic_id = ?", (kept, self.bare.topic.topic_id))

    async def _start(self) -> float:
        def start_and_stop() -> float:
            start = time.perf_counter()
            with BrokerProcess(self._url):
                return time.perf_counter() - start

        return await asyncio.to_thread(start_and_stop)


async def _take_all(session: CheckSession) -> None:
    async for _ in session.outgoing():
        pass
