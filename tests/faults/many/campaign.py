"""Many brokers and clients on one database while brokers come and go; in the end everything is judged."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from faults.answerer import Answerer
from faults.client import PREPARED, Client, code_of
from faults.history import Entry, Findings, History, Spent, judge_calls, judge_deliveries
from faults.many.clients import PacedClient, SdkConsumer, SdkProducer, StubConsumer, StubProducer
from faults.many.figures import Figures
from faults.many.notes import Notes, percentiles
from faults.many.scene import Scene
from faults.many.station import CHECKS, Station
from faults.many.troubles import Troubles
from support.databases import connect

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfmq.v1 import transaction_pb2
    from support.databases import Kind

BROKERS = 8
STUB_PRODUCERS, SDK_PRODUCERS = 24, 8
STUB_CONSUMERS, SDK_CONSUMERS = 16, 8
LISTENERS = BROKERS
CLIENTS = STUB_PRODUCERS + SDK_PRODUCERS + STUB_CONSUMERS + SDK_CONSUMERS + LISTENERS
WARM = 600.0
"""Seconds until a process has all the memory that it needs at this load."""
CONSUMED_WITHIN = 120.0


class Campaign:
    """Brokers, and clients of them.

    Attributes:
        history: what producers and check listeners saw.
        wrong: everything that contradicts something else, in words.
        shares: what each broker did of all, in percent.
    """

    def __init__(self, kind: Kind, database: str, seed: int, rate: float) -> None:
        """Takes the server's kind, an empty database, a seed, and the calls a second of a producer."""
        self.history = History()
        self.wrong: list[str] = []
        self.shares: dict[str, list[float]] = {}
        self._kind = kind
        self._database = database
        self._seed = seed
        self._rate = rate
        self._notes = Notes()

    def run(self, seconds: float, longest_freeze: float) -> None:
        """Has brokers come and go for some seconds, has all be consumed, and judges."""
        with ExitStack() as stack:
            with ThreadPoolExecutor(BROKERS) as threads:
                stations = list(threads.map(lambda number: Station(self._database, number), range(BROKERS)))
            for station in stations:
                stack.callback(station.close)
            client = stack.enter_context(Client(stations[0].endpoint))
            figures = stack.enter_context(Figures(stations))
            scene = Scene(client)
            endpoints = [station.endpoint for station in stations]
            answerer = Answerer(endpoints, scene.asked, self.history, scene.place_of)
            received = {group: History() for group in scene.groups}
            producers = self._producers(endpoints, scene, answerer)
            consumers = self._consumers(endpoints, scene, received)
            answerer.start()
            for each in (*producers, *consumers):
                each.start()
            troubles = Troubles(stations, self._seed, longest_freeze)
            began = time.monotonic()
            try:
                troubles.go_on(seconds)
            finally:
                took = time.monotonic() - began
                _stop(producers)
                if sys.exc_info()[0] is not None:
                    _stop(consumers)
                    answerer.stop()
            self._await_end(client, scene)
            _stop(consumers)
            answerer.stop()
            self.wrong += [f"a client ended: {each.error!r}" for each in (*producers, *consumers) if each.error]
            self.wrong += [f"a check listener ended: {error!r}" for error in answerer.errors]
            found = self._findings(stations, scene)
            self.wrong += judge_calls(self.history, found)
            for group, own in received.items():
                self.wrong += judge_deliveries(own.deliveries, _of_topics(found, scene, scene.groups[group]))
            for station in stations:
                station.look()
                self.wrong += station.wrong
            self.shares = figures.shares()
            self._tell(took, stations, troubles, figures, received)

    def _producers(self, endpoints: Sequence[str], scene: Scene, answerer: Answerer) -> list[PacedClient]:
        given = endpoints, self._seed, self.history, self._notes
        made: list[PacedClient] = []
        for number in range(STUB_PRODUCERS + SDK_PRODUCERS):
            where, seed, history, notes = given
            if number < STUB_PRODUCERS:
                made.append(
                    StubProducer(where, number, seed, history, notes, scene=scene, answerer=answerer, rate=self._rate)
                )
            else:
                made.append(SdkProducer(where, number, seed, history, notes, scene=scene, rate=self._rate))
        return made

    def _consumers(self, endpoints: Sequence[str], scene: Scene, received: dict[str, History]) -> list[PacedClient]:
        groups = list(scene.groups)
        made: list[PacedClient] = []
        for number in range(STUB_CONSUMERS + SDK_CONSUMERS):
            group = groups[number % len(groups)]
            kind = StubConsumer if number < STUB_CONSUMERS else SdkConsumer
            made.append(kind(endpoints, number, self._seed, received[group], self._notes, scene=scene, group=group))
        return made

    def _await_end(self, client: Client, scene: Scene) -> None:
        """Until checks have decided what was left to them, delayed messages are due, and all is consumed."""
        until = time.monotonic() + CONSUMED_WITHIN
        waiting = ""
        with connect(self._database, autocommit=True) as own, own.cursor() as cursor:
            while time.monotonic() < until:
                cursor.execute("SELECT COUNT(*) FROM scheduled_message")
                (scheduled,) = cursor.fetchone()
                undecided = len(client.undecided(scene.asked, PREPARED))
                lag = sum(
                    each.lag
                    for group, topics in scene.groups.items()
                    for topic in topics
                    for each in client.offsets(topic, group)
                )
                waiting = f"{scheduled} delayed messages, {undecided} transactions to check, {lag} messages to consume"
                if not (scheduled or undecided or lag):
                    return
                time.sleep(0.2)
        self.wrong.append(f"left after {CONSUMED_WITHIN:.0f} s: {waiting}")

    def _findings(self, stations: Sequence[Station], scene: Scene) -> Findings:
        """What the brokers have and know, asked for by many at a time."""
        with ExitStack() as stack:
            clients = [stack.enter_context(Client(station.endpoint)) for station in stations]
            threads = stack.enter_context(ThreadPoolExecutor(len(clients)))
            ids = list(self.history.bodies)
            parts = threads.map(
                lambda number: [_find(clients[number], each) for each in ids[number :: len(clients)]],
                range(len(clients)),
            )
            known = {
                each: found
                for number, part in enumerate(parts)
                for each, found in zip(ids[number :: len(clients)], part, strict=True)
            }
            log: dict[int, list[tuple[int, Entry]]] = {}
            heads: dict[int, int] = {}
            for topic in scene.topics:
                heads |= {scene.queue_number(topic, each.queue): each.max_offset for each in clients[0].offsets(topic)}
                for queue, entries in clients[0].log(topic).items():
                    log[scene.queue_number(topic, queue)] = [
                        (each.offset, Entry(each.transaction_id, each.body)) for each in entries
                    ]
        checks = {
            each: Spent(found.check_count, [check.check_number for check in found.checks])
            for each, found in known.items()
            if found and found.check_count
        }
        states = {each: found and found.state for each, found in known.items()}
        delayed = [number for number in log if scene.is_of(number, [scene.delayed])]
        return Findings(states, log, heads, checks, int(CHECKS["max_checks"]), delayed)

    def _tell(
        self,
        took: float,
        stations: Sequence[Station],
        troubles: Troubles,
        figures: Figures,
        received: dict[str, History],
    ) -> None:
        deliveries = [each for own in received.values() for each in own.deliveries]
        waits = {kind: percentiles(own)._asdict() for kind, own in sorted(self._notes.deliveries.items())}
        told = {
            "database": self._kind,
            "seed": self._seed,
            "brokers": BROKERS,
            "clients": CLIENTS,
            "seconds": round(took),
            "troubles": dict(troubles.happened),
            "calls": dict(Counter(f"{each.call} {each.outcome.value}" for each in self.history.operations)),
            "acknowledged_by_checks": self.history.checked,
            "deliveries": len(deliveries),
            "deliveries_again": len(deliveries)
            - sum(len({each.place for each in own.deliveries}) for own in received.values()),
            "send_ms": percentiles(self._notes.sends)._asdict(),
            "from_visible_to_delivered_ms": waits,
            "longest_pauses_s": self._notes.longest_pauses(),
            "shares_percent": self.shares,
            "memory_begin_mb": figures.memory_mb(0),
            "memory_end_mb": figures.memory_mb(-1),
            "memory_of_the_first_by_minute_mb": figures.by_minute(0),
            "growth_of_the_first_mb_per_min": figures.growth(0, WARM),
            "drains_cut_short": sum(station.cut_short for station in stations),
            "violations": len(self.wrong),
        }
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


def _of_topics(found: Findings, scene: Scene, topics: Sequence[str]) -> Findings:
    """The part of the log that a group reads."""
    return replace(found, log={number: entries for number, entries in found.log.items() if scene.is_of(number, topics)})


def _find(client: Client, transaction_id: str) -> transaction_pb2.Transaction | None:
    try:
        return client.transaction(transaction_id)
    except grpc.RpcError as error:
        if code_of(error) is not grpc.StatusCode.NOT_FOUND:
            raise
        return None
