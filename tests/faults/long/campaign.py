"""A day of two brokers: everything that clients and operators do, and everything that has to go again."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from faults.answerer import Answerer
from faults.client import PREPARED, Client
from faults.history import History, judge_calls, judge_deliveries
from faults.long.brokers import CHECKS, ShortDay
from faults.long.growth import Growth, index_sizes, rows_of, table_of
from faults.long.ledger import Ledger
from faults.long.names import Members, Sinks, Visitor
from faults.long.operators import Listing, Resolver
from faults.long.rough import MovedConsumer, Rough, RoughConsumer, RoughProducer, Tender
from faults.many.clients import SdkConsumer, SdkProducer, StubConsumer, StubProducer
from faults.many.notes import Notes, percentiles
from faults.many.scene import Scene
from producer_sdk import Admin, RequestRefused
from support.databases import connect
from support.memory import MIB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from faults.long.day import Day
    from faults.many.clients import PacedClient
    from support.databases import Kind

PRODUCERS, SDK_PRODUCERS = 3, 1
WARM = 600.0
"""Seconds until a process has all the memory that it needs, in a long campaign."""
CONSUMED_WITHIN = 60.0
GONE_WITHIN = 30.0
"""Seconds after the last retention time."""
SLACK, LOADED = 3.0, 20.0
"""Rounds of retention, and seconds more, that what expired may stay: a round may have begun before, and be slow."""


class Campaign:
    """Two brokers, of which one has nothing but short times.

    Attributes:
        history: what producers and check listeners saw.
        wrong: everything that contradicts something else, in words.
        growth: what grew.
        left: rows by table when all was deleted or had expired.
        done: how often each thing was done.
        late: transactions that were looked at too late to be judged.
    """

    def __init__(self, kind: Kind, database: str, seed: int, rate: float, day: Day) -> None:
        """Takes the server's kind, an empty database, a seed, the calls a second of a producer, and the times."""
        self.history, self._received_roughly, self._moved, self._batches = History(), History(), History(), History()
        self.wrong: list[str] = []
        self.left: dict[str, int] = {}
        self.done: Counter[str] = Counter()
        self.late = 0
        self._kind = kind
        self._database = database
        self._seed = seed
        self._rate = rate
        self._day = day
        self._notes = Notes()
        self._clients: list[PacedClient] = []

    @property
    def patience(self) -> float:
        """Seconds that what expired may stay."""
        return SLACK * self._day.sweep + LOADED

    @property
    def warm(self) -> float:
        """Seconds after which neither memory nor tables may grow."""
        return max(min(WARM, self._day.seconds / 3), 2 * self._day.kept if self._day.seconds > WARM else 0.0)

    def run(self) -> None:
        """Has it all happen for a day, and judges."""
        with ExitStack() as stack:
            plain = stack.enter_context(ShortDay(self._database, self._day))
            other = stack.enter_context(
                ShortDay(self._database, self._day, metrics_listen="127.0.0.1:0", metrics_interval=5)
            )
            brokers = [plain, other]
            endpoints = [broker.endpoint for broker in brokers]
            client = stack.enter_context(Client(endpoints[0]))
            scene = Scene(client)
            ledger = Ledger(endpoints[1], scene.topics, scene.queue_number, self.history, self._day.kept, self.patience)
            rough = Rough(endpoints[0], self._day, self._batches, self.patience)
            answerer = Answerer(endpoints, scene.asked, self.history, scene.place_of)
            received = {group: History() for group in scene.groups}
            producers = self._producers(endpoints, scene, answerer, rough)
            consumers = self._consumers(endpoints, scene, received, rough)
            resolver = Resolver(endpoints, 0, self._seed, self.history, self._notes, scene=scene)
            others = self._others(endpoints, scene, rough, other.metrics_endpoint)
            self._clients = [*producers, *consumers, resolver, *others]
            self.growth = Growth(self._database, [broker.process.pid for broker in brokers], self._day.seconds)
            self.growth.start()
            for watching in (ledger, rough.log, rough.dead):
                watching.start()
            answerer.start()
            for each in self._clients:
                each.start()
            began = time.monotonic()
            self._wait(began)
            took = time.monotonic() - began
            self.growth.stop()
            _stop([*producers, *others])
            self._await_end(client, scene, rough)
            _stop([*consumers, resolver])
            answerer.stop()
            for watching in (ledger, rough.log, rough.dead):
                watching.stop()
            self._judge(scene, ledger, rough, received, answerer)
            self._delete_all(endpoints[1])
            self._await_nothing()
            for number, broker in enumerate(brokers):
                self.wrong += [f"broker {number}: {line}" for line in broker.lines if "[error" in line]
                if broker.process.poll() is not None:
                    self.wrong.append(f"broker {number} ended by itself: {broker.process.returncode}")
            self._tell(took, ledger, rough)

    def _wait(self, began: float) -> None:
        while time.monotonic() - began < self._day.seconds:
            time.sleep(0.5)
            if ended := [each for each in self._clients if each.error]:
                self.wrong += [f"a {each.what} ended: {each.error!r}" for each in ended]
                return

    def _producers(self, endpoints: Sequence[str], scene: Scene, answerer: Answerer, rough: Rough) -> list[PacedClient]:
        seed, notes = self._seed, self._notes
        made: list[PacedClient] = [
            StubProducer(
                endpoints, number + 1, seed, self.history, notes, scene=scene, answerer=answerer, rate=self._rate
            )
            for number in range(PRODUCERS)
        ]
        made += [
            SdkProducer(endpoints, number + 1, seed, self.history, notes, scene=scene, rate=self._rate)
            for number in range(SDK_PRODUCERS)
        ]
        return [*made, RoughProducer(endpoints, 1, seed, self._batches, notes, rough=rough)]

    def _consumers(
        self, endpoints: Sequence[str], scene: Scene, received: dict[str, History], rough: Rough
    ) -> list[PacedClient]:
        seed, notes = self._seed, self._notes
        made: list[PacedClient] = []
        for number, (group, own) in enumerate(received.items()):
            made.append(StubConsumer(endpoints, number + 1, seed, own, notes, scene=scene, group=group))
            made.append(SdkConsumer(endpoints, number + 1, seed, own, notes, scene=scene, group=group))
        made += [RoughConsumer(endpoints, n + 1, seed, self._received_roughly, notes, rough=rough) for n in range(2)]
        return [*made, MovedConsumer(endpoints, 1, seed, self._moved, notes, rough=rough)]

    def _others(self, endpoints: Sequence[str], scene: Scene, rough: Rough, metrics: str) -> list[PacedClient]:
        seed, notes, none = self._seed, self._notes, History()
        spoken = self.sinks_topic = "of-sinks"
        with Admin(endpoints[0]) as admin:
            admin.create_topic(spoken, queues=1)
        return [
            *[Visitor(endpoints, number + 1, seed, none, notes) for number in range(2)],
            Members(endpoints, 1, seed, none, notes, topic=scene.hot),
            Sinks(endpoints, 1, seed, none, notes, topic=spoken),
            Tender(endpoints, 1, seed, none, notes, rough=rough, kept=self._day.kept),
            Listing(endpoints, 1, seed, none, notes, topic=rough.topic, metrics=[metrics]),
        ]

    def _await_end(self, client: Client, scene: Scene, rough: Rough) -> None:
        """Until all transactions are decided, delayed messages are due, and all is consumed."""
        until = time.monotonic() + CONSUMED_WITHIN
        waiting = ""
        groups = {**scene.groups, rough.group: [rough.topic]}
        with closing(connect(self._database, autocommit=True)) as own, own.cursor() as cursor:
            while time.monotonic() < until:
                cursor.execute("SELECT COUNT(*) FROM scheduled_message")
                ((scheduled,),) = cursor.fetchall()
                undecided = len(client.undecided(scene.asked)) + len(client.undecided(scene.producers, PREPARED))
                lag = sum(each.lag for group, some in groups.items() for t in some for each in client.offsets(t, group))
                waiting = f"{scheduled} delayed messages, {undecided} transactions, {lag} messages to consume"
                if not (scheduled or undecided or lag):
                    return
                time.sleep(0.2)
        self.wrong.append(f"left after {CONSUMED_WITHIN:.0f} s: {waiting}")

    def _judge(
        self, scene: Scene, ledger: Ledger, rough: Rough, received: dict[str, History], answerer: Answerer
    ) -> None:
        self.wrong += [f"a {each.what} ended: {each.error!r}" for each in self._clients if each.error]
        self.wrong += [f"a check listener ended: {error!r}" for error in answerer.errors]
        self.wrong += [f"{what} ended: {own.error!r}" for what, own in [("the ledger", ledger)] if own.error]
        if self.growth.error:
            self.wrong.append(f"the looks ended: {self.growth.error!r}")
        for each in self._clients:
            self.wrong += getattr(each, "wrong", [])
            for what in ("visits", "members", "epochs", "redriven", "purged", "moved", "resolved", "rounds"):
                self.done[what] += getattr(each, what, 0)
        delayed = [n for n in ledger.ends() if scene.is_of(n, [scene.delayed])]
        found = ledger.findings(int(CHECKS["max_checks"]), delayed)
        self.wrong += ledger.judged(judge_calls(self.history, found)) + ledger.wrong
        for group, own in received.items():
            log = {n: entries for n, entries in found.log.items() if scene.is_of(n, scene.groups[group])}
            self.wrong += judge_deliveries(own.deliveries, replace(found, log=log))
        self.wrong += rough.judge(self._received_roughly, self._moved)
        self.late = len(ledger.late) + len(rough.log.late)
        self._judge_ages()

    def _judge_ages(self) -> None:
        """Nothing outlives its time by more than some rounds of retention."""
        kept = {"delivery_event": self._day.history, "sink_transaction": self._day.history}
        for each in self.growth.looks:
            for table, age in each.oldest.items():
                late = age - kept.get(table, self._day.kept)
                if late > self.patience:
                    self.wrong.append(f"a row of {table} outlives its time by {late:.1f} s")

    def _delete_all(self, endpoint: str) -> None:
        """As an operator would: first groups, then topics. Those of dead letters are left to retention."""
        with Admin(endpoint) as admin:
            for group in list(admin.list_groups()):
                admin.delete_group(group.name)
            for topic in list(admin.list_topics()):
                if topic.name.startswith("%DLQ%"):
                    continue
                try:
                    admin.delete_topic(topic.name)
                except RequestRefused as error:
                    self.wrong.append(f"{topic.name} cannot be deleted: {error}")

    def _await_nothing(self) -> None:
        """Until what is left does not get fewer, and everything that expires has expired."""
        began = time.monotonic()
        latest = self._day.kept + self.patience + GONE_WITHIN
        expiring = {"message", "message_key", "op_record", "delivery_event", "audit_record", "dedup_key", "topic"}
        with closing(connect(self._database, autocommit=True)) as own, own.cursor() as cursor:
            while time.monotonic() - began < latest:
                self.left = rows_of(cursor)
                if not expiring & self.left.keys():
                    break
                time.sleep(0.5)
            self._indexes = index_sizes(cursor)
        self.expired_after = time.monotonic() - began

    def _tell(self, took: float, ledger: Ledger, rough: Rough) -> None:
        growth, warm = self.growth, self.warm
        told = {
            "database": self._kind,
            "seed": self._seed,
            "seconds": round(took),
            "kept_s": self._day.kept,
            "calls": dict(Counter(f"{each.call} {each.outcome.value}" for each in self.history.operations)),
            "batched": len(self._batches.operations),
            "rough_deliveries": len(self._received_roughly.deliveries),
            "dead_letters": len(rough.dead.seen(0)),
            "done": dict(self.done),
            "send_ms": percentiles(self._notes.sends)._asdict(),
            "looked_at_too_late": self.late,
            "outlived_s": round(max(ledger.latest, rough.log.latest), 1),
            "memory_mb_per_min": growth.slopes(warm),
            "memory_by_minute_mb": [growth.by_minute(number) for number in range(len(growth.pids))],
            "rows": growth.thirds(warm, lambda each: sum(each.rows.values()))._asdict(),
            "tables_mb": growth.thirds(warm, lambda each: sum(each.sizes.values()) / MIB)._asdict(),
            "history_list": {
                **growth.thirds(warm, lambda each: each.history)._asdict(),
                "most": max(each.history for each in growth.looks),
            },
            "undo_mb": growth.thirds(warm, lambda each: each.undo / MIB)._asdict(),
            "expired_after_s": round(self.expired_after, 1),
            "left": self.left,
            "indexes_left_kb": {name: size >> 10 for name, size in self._indexes.items() if size > 1 << 18},
            "violations": len(self.wrong),
        }
        print(*table_of(growth.looks), sep="\n", flush=True)
        for each in self.wrong[:100]:
            print(f"  VIOLATION {each}", file=sys.stderr)
        print(f"  {json.dumps(told)}", file=sys.stderr, flush=True)
        if path := os.environ.get("HALFMQ_FAULT_FIGURES"):
            with Path(path).open("a") as file:
                file.write(json.dumps(told) + "\n")


def _stop(clients: Sequence[PacedClient]) -> None:
    for each in clients:
        each.stop()
    for each in clients:
        each.join()
