"""Shared by both scenarios: a broker, a consumer, tables on both sides, and a watchdog."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from halfmq_cli.demo.children import BrokerChild, Child, DemoFailed, Event
from halfmq_cli.demo.inspection import Inspector
from halfmq_cli.demo.place import sweep_topics

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping

    from halfmq_cli.demo.display import Display
    from halfmq_cli.demo.place import Place
    from halfmq_cli.demo.tables import Tables

LOOK_EVERY = 0.2
PATIENCE = 90.0

ResultT = TypeVar("ResultT")


@dataclass
class Run:
    """A running scenario.

    Attributes:
        place: databases and names.
        display: the terminal output.
        topic: topic of the messages.
        consumer_group: their consumer group.
        endpoint: the broker's address.
        inspector: an admin connection to it.
        producer_groups: the groups of all producers that were started.
    """

    place: Place
    display: Display
    topic: str
    consumer_group: str
    endpoint: str
    inspector: Inspector
    producer_groups: set[str] = field(default_factory=set)
    _consumed: dict[str, Event] = field(default_factory=dict)
    _children: list[Child] = field(default_factory=list)

    async def start_producer(
        self, module: str, name: str, group: str, on_event: Callable[[Event], None], **settings: Any
    ) -> Child:
        """Starts a producer process."""
        place = self.place
        self.producer_groups.add(group)
        return await self._start(
            module, name, on_event, group=group, database=place.producer_url, prefix=place.prefix, **settings
        )

    async def start_consumer(
        self, kind: str, name: str = "consumer", *, lease: float | None = None, rows_to_live: int | None = None
    ) -> Child:
        """Starts a consumer process.

        Args:
            kind: orders or rows.
            name: name of the process.
            lease: seconds of its leases; None: the broker's default.
            rows_to_live: rows after which it dies, with unacknowledged rows in its table.
        """
        place = self.place

        def on_event(event: Event) -> None:
            if event["event"] == "consumed":
                self._consumed[name] = event

        return await self._start(
            "view_service",
            name,
            on_event,
            lease=lease,
            rows_to_live=rows_to_live,
            group=self.consumer_group,
            database=place.consumer_url,
            prefix=place.prefix,
            kind=kind,
        )

    async def _start(self, module: str, name: str, on_event: Callable[[Event], None], **settings: Any) -> Child:
        common = {"endpoint": self.endpoint, "topic": self.topic, "tag": self.place.token}
        child = await Child.start(module, name, self.place.folder, {**common, **settings}, on_event)
        self._children.append(child)
        return child

    def consumed(self, figure: str = "applied") -> int:
        """Messages that the consumers applied so far; or got again ("repeated"), or skipped ("others")."""
        return sum(int(event[figure]) for event in self._consumed.values())

    async def until(self, condition: Callable[[], Awaitable[bool]]) -> None:
        """Polls until a condition holds; `play` bounds the wait."""
        while not await condition():  # noqa: ASYNC110 - the condition is the state of another process
            await asyncio.sleep(LOOK_EVERY)

    async def all_consumed(self) -> bool:
        """Whether the consumer group has handled everything that was released."""
        return (await self.inspector.offsets(self.topic, self.consumer_group))[1] == 0

    async def play(
        self, story: Coroutine[Any, Any, ResultT], figures: Callable[[], Awaitable[Mapping[str, int]]]
    ) -> ResultT:
        """Runs a scenario to its end, shows its progress, and aborts it when there is none.

        Raises:
            DemoFailed: there was no progress for a long time.
        """
        acting, watching = asyncio.create_task(story), asyncio.create_task(self._watch(figures))
        try:
            await asyncio.wait((acting, watching), return_when=asyncio.FIRST_COMPLETED)
            if not acting.done():
                watching.result()
            result = await acting
            self.display.show(await figures())
            return result
        finally:
            acting.cancel()
            watching.cancel()
            await asyncio.gather(acting, watching, return_exceptions=True)

    async def _watch(self, figures: Callable[[], Awaitable[Mapping[str, int]]]) -> None:
        seen: Mapping[str, int] = {}
        moved_at = time.monotonic()
        while True:
            now = await figures()
            self.display.show(now)
            if now != seen:
                seen, moved_at = dict(now), time.monotonic()
            elif time.monotonic() - moved_at > PATIENCE:
                raise DemoFailed(f"Nothing has moved for {PATIENCE:.0f} s; the figures stand at {dict(now)}.")
            await asyncio.sleep(LOOK_EVERY)

    async def end_children(self) -> None:
        """Kills all running processes; those that were stopped gracefully have ended already."""
        for child in self._children:
            await child.destroy()


@dataclass(frozen=True)
class Ending:
    """What to keep after a run.

    Attributes:
        keep: everything.
        keep_topic: the topic.
    """

    keep: bool
    keep_topic: bool = False


@contextlib.asynccontextmanager
async def running(
    place: Place, display: Display, topic: str, tables: tuple[Tables, Tables], ending: Ending, **broker_settings: float
) -> AsyncIterator[Run]:
    """Starts the broker, creates topic, group and tables; afterwards ends all processes and cleans up."""
    consumer_group = f"demo-consumer-{place.token}"
    async with (
        BrokerChild(place.broker_url, place.folder, **broker_settings) as broker,
        Inspector(broker.endpoint) as inspector,
    ):
        display.say(f"the broker serves on {broker.endpoint}")
        run = Run(place, display, topic, consumer_group, broker.endpoint, inspector)
        try:
            for each in tables:
                each.create()
            await inspector.create(topic, consumer_group)
            yield run
        except BaseException:
            # An earlier error is more informative than an error of the clean-up.
            with contextlib.suppress(Exception):
                await _tidy_up(run, tables, ending)
            raise
        await _tidy_up(run, tables, ending)
    if not (ending.keep or place.own_broker_database):
        await asyncio.to_thread(sweep_topics, place.broker_url)


async def _tidy_up(run: Run, tables: tuple[Tables, Tables], ending: Ending) -> None:
    await run.end_children()
    if not ending.keep:
        for each in tables:
            each.drop()
        if not run.place.own_broker_database:
            topic = None if ending.keep_topic else run.topic
            await run.inspector.clean_up(run.producer_groups, run.consumer_group, topic)
    for each in tables:
        each.close()
