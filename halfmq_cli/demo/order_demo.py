"""The scenario of the orders: most succeed, some producers are killed, one answer never comes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from halfmq_cli.demo.compare import Comparison, compare
from halfmq_cli.demo.display import Display, Line
from halfmq_cli.demo.inspection import BY_CHECK, BY_PRODUCER, COMMITTED, PARKED, PREPARED, ROLLED_BACK
from halfmq_cli.demo.plan import COMMITS_LOCALLY, Fate, Order, make_orders, with_fate
from halfmq_cli.demo.run import Ending, Run, running
from halfmq_cli.demo.tables import ORDERS, SHIPMENTS, Book, View
from halfmq_cli.demo.verdict import CHECKS, Account, account_for

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from halfmq.v1.admin_pb2 import TransactionSummary
    from halfmq_cli.demo.children import Child, Event
    from halfmq_cli.demo.place import Place

# The defaults are 6 s and 30 s: the scenario would take eight minutes.
FIRST_CHECK, CHECK_INTERVAL = 4.0, 0.5
CRASHES = 2
LEASE = 2.0


@dataclass
class Story:
    """The orders' scenario, and its observations.

    Attributes:
        ids: transaction of each order.
        prepared_by: process that prepared each order.
        waiting: transactions without a producer for checks when all others were done.
        spent_meanwhile: checks used up on those until then.
        waited: their waiting time until then, in seconds.
    """

    run: Run
    orders: Sequence[Order]
    ids: dict[int, str] = field(default_factory=dict)
    prepared_by: dict[int, str] = field(default_factory=dict)
    waiting: int = 0
    spent_meanwhile: int = 0
    waited: float = 0.0

    def __post_init__(self) -> None:
        """Names the producer groups."""
        token = self.run.place.token
        self.service, self.pending, self.abandoned = (
            f"{name}-{token}" for name in ("order-service", "payment-pending", "abandoned")
        )

    @property
    def groups(self) -> tuple[str, str, str]:
        """All producer groups."""
        return self.service, self.pending, self.abandoned

    async def figures(self) -> Mapping[str, int]:
        """Current progress."""
        undecided = [each for group in self.groups for each in await self.run.inspector.open_transactions(group)]
        parked = sum(each.state == PARKED for each in undecided)
        prepared = len(self.ids)
        return {
            "prepared": prepared,
            "decided": max(0, prepared - len(undecided)),
            "parked": parked,
            "consumed": self.run.consumed(),
        }

    async def play(self) -> None:
        """Runs it to the end."""
        run, say = self.run, self.run.display.say
        eaten = len(with_fate(self.orders, *COMMITS_LOCALLY))
        first = await run.start_consumer("orders", "consumer-1", lease=LEASE, rows_to_live=eaten // 4)
        pending = await self._producer("payment-pending", self.pending, with_fate(self.orders, Fate.UNKNOWN))
        async with asyncio.TaskGroup() as acts:
            acts.create_task(self._abandon())
            service = acts.create_task(self._serve_with_crashes())
            consumer = acts.create_task(self._replace_consumer(first))
        await pending.done()
        await run.until(self._service_settled)
        say("every transaction in doubt is resolved: the new process answered from the orders table")
        await run.until(self._pending_parked)
        say(f"parked: transactions whose check was answered UNKNOWN {CHECKS} times")
        heir = await self._send_heir()
        await run.until(run.all_consumed)
        for child in (consumer.result(), pending, service.result(), heir):
            await child.stop()

    async def _serve_with_crashes(self) -> Child:
        """Places the orders; the process is killed twice, and a new one continues."""
        good, bad = self._parts(Fate.COMMIT, Fate.ROLLBACK), self._parts(Fate.CRASH_AFTER, Fate.CRASH_BEFORE)
        for number in range(CRASHES):
            name = f"order-service-{number + 1}"
            doomed = await self._producer(name, self.service, [*good[number], *bad[number]])
            await doomed.killed()
            self.run.display.say(f"{name} was killed (SIGKILL) with {len(bad[number])} transactions in doubt")
        name = f"order-service-{CRASHES + 1}"
        service = await self._producer(name, self.service, good[CRASHES])
        await service.done()
        return service

    async def _replace_consumer(self, doomed: Child) -> Child:
        """Has a consumer killed when its table has rows that are not acknowledged at the broker."""
        await doomed.killed()
        self.run.display.say("consumer-1 was killed (SIGKILL) before it acknowledged what is in its table")
        return await self.run.start_consumer("orders", "consumer-2", lease=LEASE)

    def _parts(self, *fates: Fate) -> list[Sequence[Order]]:
        orders = with_fate(self.orders, *fates)
        count = CRASHES + (Fate.COMMIT in fates)
        return [orders[start::count] for start in range(count)]

    async def _abandon(self) -> None:
        doomed = await self._producer("abandoned", self.abandoned, with_fate(self.orders, Fate.GONE))
        await doomed.killed()
        self._spent_before = sum(each.check_count for each in await self._left())
        self._abandoned_at = self.run.display.elapsed
        self.run.display.say("abandoned was killed (SIGKILL); no process of its group is restarted for now")

    async def _send_heir(self) -> Child:
        """Inspects the abandoned transactions, and only then starts a producer that can answer checks."""
        left = await self._left()
        self.waiting = sum(each.state == PREPARED for each in left)
        self.spent_meanwhile = sum(each.check_count for each in left) - self._spent_before
        self.waited = self.run.display.elapsed - self._abandoned_at
        self.run.display.say(
            f"{self.waiting} abandoned transactions wait since {self.waited:.1f} s, checks spent on them: "
            f"{self.spent_meanwhile}; now an heir of their group starts"
        )
        heir = await self._producer("heir", self.abandoned, [])
        await self.run.until(self._abandoned_settled)
        return heir

    async def _producer(self, name: str, group: str, orders: Sequence[Order]) -> Child:
        def on_event(event: Event) -> None:
            if event["event"] == "prepared":
                self.ids[event["order"]] = event["transaction_id"]
                self.prepared_by[event["order"]] = name

        return await self.run.start_producer(
            "order_service",
            name,
            group,
            on_event,
            orders=[(order.row, order.fate.value) for order in orders],
            never_knows=group == self.pending,
        )

    async def _service_settled(self) -> bool:
        return not await self.run.inspector.open_transactions(self.service)

    async def _abandoned_settled(self) -> bool:
        return not await self._left()

    async def _left(self) -> list[TransactionSummary]:
        return await self.run.inspector.open_transactions(self.abandoned)

    async def _pending_parked(self) -> bool:
        return all(each.state == PARKED for each in await self.run.inspector.open_transactions(self.pending))


async def play_orders(place: Place, count: int, seed: int, *, keep: bool) -> list[str]:
    """Runs the scenario of the orders and shows its figures.

    Returns:
        Violated conditions; empty if there are none.
    """
    orders = make_orders(count, seed)
    fates = {fate: len(with_fate(orders, fate)) for fate in Fate}
    book = Book(place.producer_url, place.prefix, ORDERS)
    view = View(place.consumer_url, place.prefix, SHIPMENTS)
    undecided = fates[Fate.UNKNOWN]
    goals = {
        "prepared": count,
        "decided": count - undecided,
        "parked": undecided,
        "consumed": sum(fates[fate] for fate in COMMITS_LOCALLY),
    }
    topic = f"demo-orders-{place.token}"
    with Display(goals) as display:
        display.say(f"{count} orders on {place.shown}; producer's table {book.name}, consumer's table {view.name}")
        display.say("what becomes of them: " + ", ".join(f"{fate.value} {number}" for fate, number in fates.items()))
        settings = {"first_check": FIRST_CHECK, "check_interval": CHECK_INTERVAL}
        async with running(place, display, topic, (book, view), Ending(keep), **settings) as run:
            story = Story(run, orders)
            await run.play(story.play(), story.figures)
            found = await run.inspector.transactions(story.ids.values())
            account = account_for(orders, dict(zip(story.ids, found, strict=True)), story.prepared_by)
            released, _ = await run.inspector.offsets(topic)
            comparison = compare(book.rows(), view.rows(), (book.name, view.name))
            written, consumed = book.count(), view.count()
    display.table("What the broker and the tables say", _lines(story, account, comparison, written, consumed, released))
    problems = _problems(story, account, goals, written, released)
    problems += comparison.examples
    if not comparison.same:
        problems.append(f"{book.name} and {view.name} are {comparison.describe()}")
    display.verdict(problems)
    return problems


def _lines(
    story: Story, account: Account, comparison: Comparison, written: int, consumed: int, released: int
) -> list[Line]:
    parked = account.in_state(PARKED)
    checks = ", ".join(map(str, account.parked_checks)) or "no"
    return [
        ("prepared", len(story.ids), "transactions with a half message"),
        (
            "committed",
            account.in_state(COMMITTED),
            f"{account.in_state(COMMITTED, BY_PRODUCER)} by the producer, "
            f"{account.in_state(COMMITTED, BY_CHECK)} by a check",
        ),
        (
            "rolled back",
            account.in_state(ROLLED_BACK),
            f"{account.in_state(ROLLED_BACK, BY_PRODUCER)} by the producer, "
            f"{account.in_state(ROLLED_BACK, BY_CHECK)} by a check",
        ),
        ("resolved by a check", account.by_check, "answered by another process than the one that was killed"),
        (f"parked after {checks} checks", parked, "answered UNKNOWN every time; an operator decides"),
        (
            "waited without a producer",
            story.waiting,
            f"checks spent in {story.waited:.0f} s: {story.spent_meanwhile}; resolved when the heir came",
        ),
        ("released", released, "messages in the topic"),
        (
            "consumed",
            consumed,
            f"rows of the consumer's table; {story.run.consumed('repeated')} came again and were ignored",
        ),
        ("business table", written, "orders that were committed locally"),
        ("comparison", "equal" if comparison.same else "NOT EQUAL", comparison.describe()),
    ]


def _problems(story: Story, account: Account, goals: Mapping[str, int], written: int, released: int) -> list[str]:
    problems = account.problems[:10]
    if len(account.problems) > len(problems):
        problems.append(f"... and {len(account.problems) - len(problems)} more orders")
    gone = len(with_fate(story.orders, Fate.GONE))
    for name, found, expected in (
        ("prepared transactions", len(story.ids), goals["prepared"]),
        ("parked transactions", account.in_state(PARKED), goals["parked"]),
        ("transactions that waited without a producer", story.waiting, gone),
        ("checks spent while no producer was there", story.spent_meanwhile, 0),
        ("rows of the business table", written, goals["consumed"]),
        ("messages released", released, goals["consumed"]),
    ):
        if found != expected:
            problems.append(f"{name}: {found}, expected {expected}")
    if not story.run.consumed("repeated"):
        problems.append("a consumer was killed before it acknowledged, but no message came again")
    return problems
