"""The scenario of the user's rows: all are sent, the producer is killed halfway, and its successor continues."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from halfmq_cli.demo.compare import Comparison, compare
from halfmq_cli.demo.display import Display, Line
from halfmq_cli.demo.inspection import BY_CHECK, BY_PRODUCER, COMMITTED
from halfmq_cli.demo.row_source import read
from halfmq_cli.demo.run import Ending, Run, running
from halfmq_cli.demo.tables import RECEIVED_ROWS, SENT_ROWS, Book, Row, View

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from halfmq.v1.transaction_pb2 import Transaction
    from halfmq_cli.demo.children import Child, Event
    from halfmq_cli.demo.place import Place

# Up to this many rows, each row is a separate transaction by default; beyond it, several rows share one.
SMALL = 10_000
CHECK_INTERVAL = 1.0


@dataclass(frozen=True)
class RowJob:
    """The rows to send.

    Attributes:
        path: the file.
        total: how many rows it has.
        topic: the topic, or None for a temporary one.
        rows_per_transaction: how many rows share a transaction.
        kill: kill the producer halfway.
    """

    path: Path
    total: int
    topic: str | None
    rows_per_transaction: int
    kill: bool


@dataclass
class Story:
    """The rows' scenario, and its observations.

    Attributes:
        total: rows of the file.
        together: rows that share a transaction.
        before: messages that the topic held before.
        released: messages released to it since.
        written: rows in the producer's table, as far as reported.
        in_doubt: transactions without a verdict when the producer was killed.
        left_to_checks: verdicts that the producer could not send itself.
        seconds: from the start of the consumer to its last row.
    """

    run: Run
    job: RowJob
    total: int
    together: int
    before: int = 0
    released: int = 0
    written: int = 0
    in_doubt: list[str] = field(default_factory=list)
    left_to_checks: int = 0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        """Names the producer group."""
        self.group = f"row-service-{self.run.place.token}"

    async def figures(self) -> Mapping[str, int]:
        """Current progress."""
        self.released = (await self.run.inspector.offsets(self.run.topic))[0] - self.before
        return {
            "written": self.written,
            "released": self.released,
            "consumed": self.run.consumed(),
        }

    async def play(self, book: Book) -> None:
        """Runs it to the end."""
        run, say = self.run, self.run.display.say
        begun = run.display.elapsed
        self.before, _ = await run.inspector.offsets(run.topic)
        consumer = await run.start_consumer("rows")
        name = "row-service-1"
        if self.job.kill:
            doomed = await self._producer(name, rows_to_live=(self.total + 1) // 2)
            await doomed.killed()
            self.in_doubt = await self._await_in_doubt()
            self.written = await asyncio.to_thread(book.count)
            say(
                f"{name} was killed (SIGKILL) with {self.written:,} rows in its table and {len(self.in_doubt)} "
                "transactions in doubt; the next process goes on with the rows that are missing"
            )
            name = "row-service-2"
        service = await self._producer(name, rows_to_live=None)
        await service.done()
        left = f"; {self.left_to_checks} verdicts are left to checks" if self.left_to_checks else ""
        say(f"every row is in the producer's table{left}")
        await run.until(self._settled)
        say("no transaction is in doubt any more")
        await run.until(run.all_consumed)
        self.seconds = run.display.elapsed - begun
        for child in (consumer, service):
            await child.stop()

    async def _await_in_doubt(self) -> list[str]:
        # The last requests of the killed process may still be in flight.
        before: list[str] | None = None
        while (now := await self._open_ids()) != before:
            before = now
            await asyncio.sleep(0.2)
        return now

    async def _open_ids(self) -> list[str]:
        return [each.transaction_id for each in await self.run.inspector.open_transactions(self.group)]

    async def _settled(self) -> bool:
        return not await self._open_ids()

    async def _producer(self, name: str, *, rows_to_live: int | None) -> Child:
        return await self.run.start_producer(
            "row_service",
            name,
            self.group,
            self._on_event,
            input=str(self.job.path.resolve()),
            rows=self.total,
            rows_per_transaction=self.together,
            rows_to_live=rows_to_live,
        )

    def _on_event(self, event: Event) -> None:
        if event["event"] == "written":
            self.written += event["rows"]
        elif event["event"] == "left to a check":
            self.left_to_checks += 1


async def play_rows(place: Place, job: RowJob, *, keep: bool) -> list[str]:
    """Sends the user's rows and shows the result.

    Returns:
        Violated conditions; empty if there are none.
    """
    total = job.total
    together = job.rows_per_transaction
    book = Book(place.producer_url, place.prefix, SENT_ROWS)
    view = View(place.consumer_url, place.prefix, RECEIVED_ROWS)
    topic = job.topic or f"demo-rows-{place.token}"
    with Display(dict.fromkeys(("written", "released", "consumed"), total)) as display:
        display.say(f"{total:,} rows of {job.path}, {together} per transaction, on {place.shown}")
        display.say(f"topic {topic}; producer's table {book.name}, consumer's table {view.name}")
        ending = Ending(keep, keep_topic=job.topic is not None)
        settings = {"first_check": 2.0 if total <= SMALL else 5.0, "check_interval": CHECK_INTERVAL}
        async with running(place, display, topic, (book, view), ending, **settings) as run:
            story = Story(run, job, total, together)
            await run.play(story.play(book), story.figures)
            display.say("comparing the file, the producer's table and the consumer's table, row for row")
            # A commit in flight when the producer died may still have arrived.
            resolved = [
                each for each in await run.inspector.transactions(story.in_doubt) if each.op.source != BY_PRODUCER
            ]
            sent, received = await asyncio.to_thread(_compare, job.path, book, view)
            lines = _lines(story, resolved, book, view, sent, received)
            problems = _problems(story, resolved, sent, received)
    display.table("What the broker and the tables say", lines)
    display.verdict(problems)
    return problems


def _compare(path: Path, book: Book, view: View) -> tuple[Comparison, Comparison]:
    return (
        compare(_file_rows(path), book.rows(), (path.name, book.name)),
        compare(book.rows(), view.rows(), (book.name, view.name)),
    )


def _file_rows(path: Path) -> Iterator[Row]:
    return ((row.number, row.body) for row in read(path))


def _lines(
    story: Story, resolved: Sequence[Transaction], book: Book, view: View, sent: Comparison, received: Comparison
) -> list[Line]:
    outcomes = book.outcomes()
    by_check = [each for each in resolved if each.op.source == BY_CHECK]
    committed = sum(each.op.state == COMMITTED for each in by_check)
    others, repeated = story.run.consumed("others"), story.run.consumed("repeated")
    passed = f"; {others:,} messages of others passed over" if others else ""
    return [
        (
            "rows of the file",
            story.total,
            f"{story.together} per transaction; {story.total / story.seconds:,.0f} rows/s end to end",
        ),
        ("local transactions", outcomes.get("committed", 0), "committed by the producer's processes"),
        ("in doubt after the kill", len(resolved), "transactions prepared and without a verdict"),
        (
            "resolved by a check",
            len(by_check),
            f"{committed} committed, {len(by_check) - committed} rolled back",
        ),
        ("business table", book.count(), f"rows of {book.name}"),
        ("released", story.released, f"messages in the topic {story.run.topic}"),
        ("consumed", view.count(), f"rows of {view.name}; {repeated:,} came again and were ignored{passed}"),
        ("file and business table", "equal" if sent.same else "NOT EQUAL", sent.describe()),
        ("comparison", "equal" if received.same else "NOT EQUAL", received.describe()),
    ]


def _problems(story: Story, resolved: Sequence[Transaction], sent: Comparison, received: Comparison) -> list[str]:
    problems = [
        f"transaction {each.transaction_id} was in doubt, and no check decided it"
        for each in resolved
        if each.op.source != BY_CHECK
    ]
    if story.job.kill and not resolved:
        problems.append("the producer was killed, but no transaction was in doubt")
    if story.released != story.total:
        problems.append(f"messages released: {story.released}, expected {story.total}")
    for comparison, names in ((sent, "the file and the business table"), (received, "business and consumer's table")):
        problems += comparison.examples
        if not comparison.same:
            problems.append(f"{names} are {comparison.describe()}")
    return problems
