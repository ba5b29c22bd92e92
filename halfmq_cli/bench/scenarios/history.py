"""`halfmq bench history`: the cost of a long history for the checker and the pull.

The same work is measured in turns on two databases, one almost empty and one with a long history, so that changes of
the machine's speed affect both.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import statistics
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broker.domain.check_policy import CheckPolicy
from broker.domain.group import GroupSettings
from broker.domain.message import Message
from broker.domain.topic import TopicSettings
from broker.errors import BrokerError
from broker.maintenance.transaction_checker import TransactionChecker
from broker.ports.delivery import AckWork, ClaimWork, JoinWork
from broker.ports.transactions import Half, PrepareWork
from broker.services.ids import new_id
from broker.services.producing.check_sessions import CheckSession, CheckSessions
from broker.storage.adapters.store import Store
from broker.storage.engine.durability import open_database
from broker.storage.migrations import migrate
from halfmq_cli.bench.databases import settle, side_by_side
from halfmq_cli.bench.options import DatabaseUrl, Json  # noqa: TC001 - typer reads them
from halfmq_cli.serving import fail

if TYPE_CHECKING:
    from broker.domain.topic import Topic
    from broker.storage.engine.connection import Database

CHUNK = 10_000
BODY = b"x" * 200
PULLED = 10_000
PULL_BATCH = 500


def history(
    database: DatabaseUrl = None,
    decided: Annotated[int, typer.Option(min=1, help="Decided transactions in the long history.")] = 1_000_000,
    messages: Annotated[int, typer.Option(min=PULLED, help="Messages in the long history.")] = 1_000_000,
    pending: Annotated[int, typer.Option(min=1, help="Transactions that the checker asks about.")] = 1_000,
    rounds: Annotated[int, typer.Option(min=2, help="Measurements of each kind.")] = 41,
    json_output: Json = False,
) -> None:
    """Measure a pass of the checker and the pull rate with a long history, against none."""
    try:
        with side_by_side(database, 2) as (urls, shown):
            figures = asyncio.run(_run(urls, decided, messages, pending, rounds))
    except BrokerError as error:
        fail(error)
    figures |= {"decided": decided, "messages": messages, "pending": pending, "database": shown}
    if json_output:
        sys.stdout.write(json.dumps(figures) + "\n")
    else:
        for name, value in figures.items():
            sys.stdout.write(f"{name:>24}  {value}\n")


async def _run(urls: list[str], decided: int, messages: int, pending: int, rounds: int) -> dict[str, Any]:
    short, long = [_Side(url) for url in urls]
    try:
        await short.prepare(pending, 0, PULLED)
        await long.prepare(pending, decided, messages)
        await asyncio.to_thread(settle, long.database)
        passes: dict[_Side, list[float]] = {short: [], long: []}
        pulls: dict[_Side, list[float]] = {short: [], long: []}
        for turn in range(rounds + 1):
            for side in (short, long) if turn % 2 else (long, short):
                taken = await side.checker_pass(pending)
                pulled = await side.pull()
                if turn:  # The first round warms up.
                    passes[side].append(taken)
                    pulls[side].append(pulled)
    finally:
        await short.close()
        await long.close()
    none, kept = _fast(passes[short]), _fast(passes[long])
    few, many = PULLED / _fast(pulls[short]), PULLED / _fast(pulls[long])
    return {
        "checker_pass_none_ms": round(none * 1000, 2),
        "checker_pass_kept_ms": round(kept * 1000, 2),
        "checker_ratio": round(kept / none, 3),
        "pull_few_per_s": round(few, 1),
        "pull_many_per_s": round(many, 1),
        "pull_ratio": round(many / few, 3),
    }


def _fast(times: list[float]) -> float:
    """The first quartile. Other work on the machine only adds time, up to a factor of two, to half of the rounds."""
    return statistics.quantiles(times, n=4)[0]


class _Side:
    """One of the two databases, with a store and a checker on it."""

    def __init__(self, url: str) -> None:
        self.database: Database = open_database(url, answer_timeout=300, allow_unsafe=True)[0]
        migrate(self.database)
        self._policy = CheckPolicy(first_check=0, interval=3600 * 1_000_000, max_checks=1000)
        self._store = Store(self.database, broker_id="bench", policy=self._policy)
        self._sessions = CheckSessions()
        self._checker = TransactionChecker(self._store, self._sessions, self._policy, self._store.clock)
        self._names = itertools.count()
        self._answering: asyncio.Task[None] | None = None

    async def prepare(self, pending: int, decided: int, messages: int) -> None:
        await self._store.start()
        self._topic: Topic = await self._store.create_topic("bench", TopicSettings(1, 10**15))
        self._messages = messages
        group_id = await self._store.producer_group_id("bench")
        await asyncio.to_thread(self._fill, decided, messages)
        work = [
            PrepareWork(new_id(), group_id, [Half(self._topic.topic_id, None, Message("bench", BODY))])
            for _ in range(pending)
        ]
        await self._store.prepare(work)
        session = CheckSession("bench")
        self._sessions.admit(session, group_id)
        self._answering = asyncio.create_task(_take_all(session))

    def _fill(self, decided: int, messages: int) -> None:
        session = self.database.session()
        queue_id = self._topic.queue_ids[0]
        now = time.time_ns() // 1000
        for start in range(0, decided, CHUNK):
            numbers = range(start, min(start + CHUNK, decided))
            ops = [(n.to_bytes(16, "big"), 2, 1, 1, 1, 0, now, now, f"[[{queue_id},{n}]]") for n in numbers]
            columns = "transaction_id, state, source, producer_group_id, half_count, check_count, prepared_at,"
            session.begin()
            session.insert("op_record", columns + " decided_at, released", ops)
            session.commit()
        for start in range(0, messages, CHUNK):
            numbers = range(start, min(start + CHUNK, messages))
            rows = [(queue_id, n, n.to_bytes(16, "big"), 0, BODY, len(BODY), now, now) for n in numbers]
            columns = "queue_id, log_offset, transaction_id, position, body, size, born_at, stored_at"
            session.begin()
            session.insert("message", columns, rows)
            session.commit()
        self.database.release(session)
        self._change("UPDATE queue SET next_offset = ? WHERE queue_id = ?", (messages, queue_id))

    async def checker_pass(self, pending: int) -> float:
        """Seconds of a pass in which every pending transaction is due."""
        await asyncio.to_thread(self._change, "UPDATE half_message SET check_due_at = 0", ())
        start = time.perf_counter()
        sent = await self._checker.check_due()
        taken = time.perf_counter() - start
        if sent < pending:
            raise RuntimeError(f"{sent} of {pending} checks went out")
        return taken

    async def pull(self) -> float:
        """Seconds of claiming and acknowledging the newest PULLED messages, by a new group."""
        group = await self._store.create_group(f"bench-{next(self._names)}", GroupSettings(), TopicSettings(1, 10**15))
        await self._store.join(JoinWork(group, [self._topic], "bench", {}))
        move = "UPDATE group_progress SET next_offset = ? WHERE group_id = ?"
        await asyncio.to_thread(self._change, move, (self._messages - PULLED, group.group_id))
        start = time.perf_counter()
        pulled = 0
        while pulled < PULLED:
            work = ClaimWork(group, [self._topic], "bench", PULL_BATCH, 1 << 20, 30_000_000)
            claimed = (await self._store.claim([work]))[0]
            if isinstance(claimed, BrokerError):
                raise claimed
            acks = [AckWork(d.lease_id, d.token, [m.offset for m in d.messages]) for d in claimed.parts]
            await self._store.settle(acks)
            pulled += sum(len(each.offsets) for each in acks)
        return time.perf_counter() - start

    def _change(self, sql: str, values: tuple[int, ...]) -> None:
        session = self.database.session()
        session.begin()
        session.run(sql, values)
        session.commit()
        self.database.release(session)

    async def close(self) -> None:
        if self._answering is not None:
            self._answering.cancel()
        await self._store.close()
        self.database.close()


async def _take_all(session: CheckSession) -> None:
    async for _ in session.outgoing():
        pass
