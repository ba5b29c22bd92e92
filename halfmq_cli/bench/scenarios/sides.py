"""One of two sides that are measured in turns: a database, brokers on it, and clients that send, decide and consume."""

from __future__ import annotations

import itertools
import time
from collections import defaultdict
from contextlib import ExitStack
from typing import TYPE_CHECKING

from halfmq_cli.bench.accounting import check_arrived, numbers_stored
from halfmq_cli.bench.clients.consumers import RECEIVE
from halfmq_cli.bench.clients.conversation import QUIET
from halfmq_cli.bench.databases import make_topic
from halfmq_cli.bench.load import GROUP, QUEUE_TOPIC, QUEUES, TOPIC
from halfmq_cli.bench.options import CompressionName
from halfmq_cli.bench.paired import Round, compared
from halfmq_cli.bench.processes import BrokerProcess, Client
from halfmq_cli.bench.scenarios.consume import fill

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from broker.storage.engine.connection import Database

SEND, SDK_SEND, TRANSACTION, CONSUME = "send, a call each", "send, by the SDK", "prepare and commit", "consume and ack"
CALLS = (SEND, SDK_SEND, TRANSACTION, CONSUME)
NUMBERS = 1 << 40
"""What the numbers of the SDK's messages begin with."""
ONE_START = 1 << 24
"""Numbers of the messages between two starts of a client."""
WARM_UP = 0.3
POLL = 0.02


class Side:
    """A database, brokers on it, and their clients.

    Attributes:
        options: further ones of `halfmq serve`.
        variant: the module of halfmq_cli.bench that is run in its place, if any.
        token: what the clients show; empty: nothing.
        broker: the one that was started last.
    """

    def __init__(self, url: str, opened: Database, messages: int, load: dict[str, int], sdk_in_flight: int) -> None:
        """Makes the topics, and fills the one that is read.

        Args:
            url: of the database.
            opened: the same, with tables.
            messages: that are consumed in a round.
            load: `in_flight` and `size` of the calls.
            sdk_in_flight: messages of the SDK under way.
        """
        self._url, self._opened, self._messages = url, opened, messages
        self._load, self._sdk_in_flight = load, sdk_in_flight
        self.options: list[str] = []
        self.variant = ""
        self.token = ""
        self._sent: list[range] = []
        self._groups = itertools.count()
        for topic in (TOPIC, QUEUE_TOPIC):
            make_topic(opened, topic, QUEUES, CompressionName.NONE)
        fill(opened, QUEUE_TOPIC, messages, load["size"])

    def start(self, stack: ExitStack, first: int) -> None:
        """Starts a broker and its clients, whose messages have numbers from `first` on, and warms them up."""
        self.broker = stack.enter_context(BrokerProcess(self._url, *self.options, variant=self.variant))
        shows = {"token": self.token}
        self._unary = stack.enter_context(
            Client("unary producer", self.broker.endpoint, **self._load, **shows, first=first)
        )
        sdk = {**self._load, "in_flight": self._sdk_in_flight, "first": NUMBERS + first}
        self._producer = stack.enter_context(Client("producer", self.broker.endpoint, **sdk, **shows))
        self._consumer = stack.enter_context(
            Client("draining consumer", self.broker.endpoint, consumers=1, prefetch=4 * RECEIVE, **shows)
        )
        self._next = {SEND: first, SDK_SEND: NUMBERS + first}
        for what in CALLS:
            self.measure(what, WARM_UP)

    def measure(self, what: str, seconds: float) -> Round:
        """Measures calls of one kind for so many seconds; consumers for a number of messages."""
        before = self.broker.cpu_seconds()
        if what == CONSUME:
            done, taken, client_cpu = self._drain()
        elif what == SDK_SEND:
            answer = self._producer.ask(seconds)
            done, taken, client_cpu = answer["sent"], answer["seconds"], answer["cpu_s"]
            self._note(SDK_SEND, done)
        else:
            answer = self._unary.ask(["halfmq", "send" if what == SEND else "transaction", seconds])
            done, taken, client_cpu = answer["done"], answer["seconds"], answer["cpu_s"]
            self._note(SEND, done)
        return Round(done, taken, self.broker.cpu_seconds() - before, client_cpu)

    def _note(self, of: str, done: int) -> None:
        self._sent.append(range(self._next[of], self._next[of] + done))
        self._next[of] += done

    def _drain(self) -> tuple[int, float, float]:
        started = self._consumer.ask({"topic": QUEUE_TOPIC, "group": f"{GROUP}-{next(self._groups)}"})["started"]
        acked, grown_at = 0, time.monotonic()
        while acked < self._messages and time.monotonic() - grown_at < QUIET:
            time.sleep(POLL)
            now = self._consumer.ask("progress")["acked"]
            if now > acked:
                acked, grown_at = now, time.monotonic()
        answer = self._consumer.ask("stop")
        check_arrived(answer["numbers"], range(self._messages))
        return self._messages, answer["ended"] - started, answer["cpu_s"]

    def check(self) -> None:
        """Compares what is stored with what was sent.

        Raises:
            Unaccounted: they differ.
        """
        places = {number: place for place, number in enumerate(itertools.chain(*self._sent))}
        # One that was not sent gets a number that no place has.
        check_arrived((places.get(each, -1) for each in numbers_stored(self._opened, TOPIC)), range(len(places)))


def in_turns(sides: Sequence[Side], seconds: float, rounds: int) -> dict[str, dict[str, float | None]]:
    """Measures both sides in turns; the figures of each kind of calls.

    Two processes of the same program differ by some percent for as long as they live, so each round has new ones.
    """
    measured: dict[str, list[list[Round]]] = defaultdict(lambda: [[], []])
    for number in range(rounds):
        turn = sides[:: -1 if number % 2 else 1]
        with ExitStack() as running:
            for side in turn:
                side.start(running, number * ONE_START)
            for what in CALLS:
                # There and back again: what changes evenly meanwhile is the same for both.
                parts = [(side, side.measure(what, seconds / rounds / 2)) for side in (*turn, *turn[::-1])]
                for which, side in enumerate(sides):
                    one, other = (part for of, part in parts if of is side)
                    measured[what][which].append(one + other)
    for side in sides:
        side.check()
    return {what: compared(*both) for what, both in measured.items()}


def columns(calls: Mapping[str, Mapping[str, float | None]]) -> dict[str, dict[str, float | None]]:
    """A row for each figure: there are more of them than of calls."""
    names = next(iter(calls.values()))
    return {name: {what: figures[name] for what, figures in calls.items()} for name in names}
