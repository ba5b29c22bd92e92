"""`halfmq bench access`."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from broker.domain.access import rule_of
from broker.errors import BrokerError
from broker.storage.adapters.store import Store
from broker.wire.credentials.tokens import hash_of, new_token, with_token
from halfmq_cli.bench.accounting import check_arrived, numbers_stored
from halfmq_cli.bench.clients.consumers import RECEIVE
from halfmq_cli.bench.clients.conversation import QUIET
from halfmq_cli.bench.databases import make_topic, side_by_side, with_tables
from halfmq_cli.bench.load import GROUP, QUEUE_TOPIC, QUEUES, TOPIC
from halfmq_cli.bench.options import CompressionName, DatabaseUrl, Json, Size
from halfmq_cli.bench.paired import Round, compared
from halfmq_cli.bench.processes import BrokerProcess, Client
from halfmq_cli.bench.report import print_figures, print_table
from halfmq_cli.bench.scenarios.consume import fill
from halfmq_cli.serving import fail

if TYPE_CHECKING:
    from collections.abc import Mapping

    from broker.domain.access import Rule
    from broker.storage.engine.connection import Database

SEND, SDK_SEND, TRANSACTION, CONSUME = "send, a call each", "send, by the SDK", "prepare and commit", "consume and ack"
CALLS = (SEND, SDK_SEND, TRANSACTION, CONSUME)
NAME, ROLE = "bench", "benchmarks"
NUMBERS = 1 << 40
"""What the numbers of the SDK's messages begin with."""
ONE_START = 1 << 24
"""Numbers of the messages between two starts of a client."""
WARM_UP = 0.3
POLL = 0.02


def access(
    database: DatabaseUrl = None,
    in_flight: Annotated[int, typer.Option(min=1, max=10_000, help="Calls under way at a time.")] = 64,
    sdk_in_flight: Annotated[int, typer.Option(min=1, max=10_000, help="Messages of the SDK under way.")] = 256,
    messages: Annotated[int, typer.Option(min=1, help="Messages that are consumed in a round, twice.")] = 10_000,
    rules: Annotated[int, typer.Option(min=5, max=100_000, help="Rules that the broker has.")] = 100,
    size: Size = 1024,
    seconds: Annotated[
        float, typer.Option(min=0.5, help="How long to measure each thing in all, on each side.")
    ] = 20.0,
    rounds: Annotated[int, typer.Option(min=1, help="Parts of this time, each with new processes.")] = 20,
    json_output: Json = False,
) -> None:
    """Measure what access costs: a broker with it and one without, in turns, on the same server.

    Clients of the one show a bearer token with each call, and rules allow it; the other one asks nobody. Two processes
    of the same program differ by some percent for as long as they live, so each round has new ones.
    """
    measured: dict[str, list[list[Round]]] = defaultdict(lambda: [[], []])
    try:
        with ExitStack() as stack:
            urls, shown = stack.enter_context(side_by_side(database, 2))
            tokens = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="halfmq-"))) / "tokens.toml"
            opened = [stack.enter_context(with_tables(url)) for url in urls]
            sides = [
                _Side(url, each, messages, {"in_flight": in_flight, "size": size}, sdk_in_flight)
                for url, each in zip(urls, opened, strict=True)
            ]
            sides[1].guard(tokens, rules)
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
    except BrokerError as error:
        fail(error)
    calls = {what: compared(*both) for what, both in measured.items()}
    settings = {"database": shown, "rules": rules, "rounds": rounds, "in_flight": in_flight}
    settings |= {"sdk_in_flight": sdk_in_flight, "size_bytes": size}
    if json_output:
        sys.stdout.write(json.dumps({"calls": calls, **settings}) + "\n")
    else:
        print_table("halfmq bench access", "", _columns(calls))
        print_figures("access", settings, as_json=False)


def _columns(calls: Mapping[str, Mapping[str, float | None]]) -> dict[str, dict[str, float | None]]:
    """A row for each figure: there are more of them than of calls."""
    names = next(iter(calls.values()))
    return {name: {what: figures[name] for what, figures in calls.items()} for name in names}


class _Side:
    """A database, brokers on it, and their clients."""

    def __init__(self, url: str, opened: Database, messages: int, load: dict[str, int], sdk_in_flight: int) -> None:
        self._url, self._opened, self._messages = url, opened, messages
        self._load, self._sdk_in_flight = load, sdk_in_flight
        self._options: list[str] = []
        self._token = ""
        self._sent: list[range] = []
        self._groups = itertools.count()
        for topic in (TOPIC, QUEUE_TOPIC):
            make_topic(opened, topic, QUEUES, CompressionName.NONE)
        fill(opened, QUEUE_TOPIC, messages, load["size"])

    def guard(self, tokens: Path, rules: int) -> None:
        """Has its brokers let in only who shows a token of this file, to what so many rules allow."""
        self._token = new_token()
        tokens.write_bytes(with_token(b"", NAME, hash_of(self._token), roles=[ROLE], tenant="", replace=False))
        asyncio.run(_grant(self._opened, rules))
        self._options = ["--access", f"--access-tokens={tokens}", "--access-without-tls"]

    def start(self, stack: ExitStack, first: int) -> None:
        """Starts a broker and its clients, whose messages have numbers from `first` on, and warms them up."""
        self._broker = stack.enter_context(BrokerProcess(self._url, *self._options))
        shows = {"token": self._token}
        self._unary = stack.enter_context(
            Client("unary producer", self._broker.endpoint, **self._load, **shows, first=first)
        )
        sdk = {**self._load, "in_flight": self._sdk_in_flight, "first": NUMBERS + first}
        self._producer = stack.enter_context(Client("producer", self._broker.endpoint, **sdk, **shows))
        self._consumer = stack.enter_context(
            Client("draining consumer", self._broker.endpoint, consumers=1, prefetch=4 * RECEIVE, **shows)
        )
        self._next = {SEND: first, SDK_SEND: NUMBERS + first}
        for what in CALLS:
            self.measure(what, WARM_UP)

    def measure(self, what: str, seconds: float) -> Round:
        """Measures calls of one kind for so many seconds; consumers for a number of messages."""
        before = self._broker.cpu_seconds()
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
        return Round(done, taken, self._broker.cpu_seconds() - before, client_cpu)

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


async def _grant(opened: Database, count: int) -> None:
    store = Store(opened, broker_id="bench")
    await store.start()
    try:
        for rule in _rules(count):
            await store.grant(rule, "")
    finally:
        await store.close()


def _rules(count: int) -> list[Rule]:
    """A few that the clients of the benchmark need, by name and by role, among others for them and for others."""
    needed = [
        rule_of(f"user:{NAME}", "topic", f"{TOPIC}*", ["produce", "consume"]),
        rule_of(f"role:{ROLE}", "group", f"{GROUP}*", ["produce", "check", "consume", "CREATE"]),
        rule_of(f"role:{ROLE}", "topic", f"{TOPIC}-secret", ["all"], allow=False),
        rule_of("user:*", "cluster", "reflection", ["GET"]),
        rule_of("user:*", "topic", "public.*", ["consume"], sources=["10.0.0.0/8", "127.0.0.0/8"]),
    ]
    subjects = (f"role:{ROLE}", *(f"user:service-{number}" for number in range(4)))
    further = [
        rule_of(subject, "topic" if number % 2 else "group", f"team-{number}.*", ["produce", "consume"])
        for number, subject in zip(range(count - len(needed)), itertools.cycle(subjects), strict=False)
    ]
    return [*needed, *further]
