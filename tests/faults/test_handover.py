"""What one broker does at a time is done by another one within 5 s, when that one is killed, frozen or drained.

Two kinds of work: by turns that are kept from second to second (retention, and the samples of metrics), and under locks
of a database transaction (delayed messages, submissions, checks), which is stopped at its COMMIT. HALFMQ_FAULT_FIGURES
names a file for a line of JSON with the times.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import pytest

from broker.maintenance import retention, state_sampler
from broker.maintenance.turn_keeper import HOLD
from faults.client import Client, message
from faults.handover import DelayedMessages, Server, Submissions, TransactionChecks, Work
from faults.sites import Proxied
from support.brokers import BrokerProcess
from support.metrics import samples_of, text_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.databases import Kind

How: TypeAlias = Literal["killed", "frozen", "drained"]
TURNS = (retention.TASK, state_sampler.TASK)
SETTINGS = {"metrics_listen": "127.0.0.1:0", "metrics_interval": 1}
WITHIN = 5.0
MARGIN = 2.0
"""Seconds for what the test itself does, and a machine that is at work for others."""
LATE = 10
"""A round of a broker has so many steps, each of which may come as late as a thread that only sleeps."""
OFTEN = 0.05
PATIENCE = 60.0
BRIEF = 0.1


@contextmanager
def lateness() -> Iterator[list[float]]:
    """Takes how late a thread was at most that sleeps, in seconds: that is the machine's fault, and not a broker's."""
    worst = [0.0]
    ended = threading.Event()

    def watch() -> None:
        began = time.monotonic()
        while not ended.wait(OFTEN):
            now = time.monotonic()
            worst[0] = max(worst[0], now - began - OFTEN)
            began = now

    watcher = threading.Thread(target=watch, name="lateness")
    watcher.start()
    try:
        yield worst
    finally:
        ended.set()
        watcher.join()


def until(holds: Callable[[], bool], what: str | Callable[[], str]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, what if isinstance(what, str) else what()
        time.sleep(OFTEN)


def hold(first: Proxied, works: list[Work]) -> None:
    """Has the first broker stop at each of these; the other one may do some pieces before."""
    for work in works:
        first.proxy.on_commit(matching=work.commits, when="before", action=work.hold)
    for work in works:
        while not work.held.is_set():
            work.give()
            until(work.held_or_done, f"nobody does {work.name}")


def stop(first: Proxied, how: How, works: list[Work]) -> None:
    """What happens to the first broker."""
    if how == "frozen":
        first.broker.process.send_signal(signal.SIGSTOP)
    elif how == "killed":
        first.broker.kill()
        for work in works:
            work.release()
    else:
        assert first.broker.stop() == 0, first.broker.log


@pytest.mark.parametrize("how", ["killed", "frozen", "drained"])
def test_another_broker_goes_on_within_five_seconds(
    kind: Kind, fresh_database: Callable[[Kind], str], how: How
) -> None:
    database = fresh_database(kind)
    with ExitStack() as stack:
        server = Server(database)
        stack.callback(server.close)
        first = stack.enter_context(Proxied(database, broker_id="first", **SETTINGS))
        stack.callback(first.broker.process.send_signal, signal.SIGCONT)
        until(lambda: {server.turns().get(task, ("", 0))[0] for task in TURNS} == {"first"}, "the first has no turns")
        first.client.create_topic("brief", 1, retention=BRIEF)
        first.client.send(message("brief", "to be deleted"))
        second = stack.enter_context(BrokerProcess(database, broker_id="second", drain=0, **SETTINGS))
        client = stack.enter_context(Client(second.endpoint))
        works: list[Work] = [
            each(server, first.client, client) for each in (DelayedMessages, Submissions, TransactionChecks)
        ]
        for work in works:
            stack.callback(work.close)
        late = stack.enter_context(lateness())
        if how == "drained":
            for work in works:
                work.give()
        else:
            hold(first, works)
        stopped_at = server.now()
        stop(first, how, works)
        took: dict[str, float] = {}

        def note() -> bool:
            """Whether all is done; when that was, of each."""
            now = server.now()
            for work in works:
                if work.name not in took and work.done():
                    took[work.name] = now - (work.held_at if how == "frozen" else stopped_at)
            for task, (broker_id, ends) in server.turns().items():
                if task in TURNS and task not in took and broker_id == "second":
                    took[task] = ends - HOLD / 1e6 - stopped_at
            return len(took) == len(works) + len(TURNS)

        until(note, lambda: f"only {took}")
        assert max(took.values()) <= WITHIN + MARGIN + LATE * late[0], (took, late)
        until(lambda: client.offsets("brief")[0].min_offset == 1, "the second does no retention")
        sampled = "halfmq_sample_timestamp_seconds"
        until(lambda: any(name == sampled for name, _ in samples_of(text_at(second.metrics_endpoint))), "no samples")
        assert second.count("[error") == 0, second.log
        tell(kind, how, took, late[0])


def tell(kind: Kind, how: How, took: dict[str, float], late: float) -> None:
    figures = {
        "database": kind,
        "first": how,
        **{name: round(each, 2) for name, each in took.items()},
        "late": round(late, 2),
    }
    print(f"  {json.dumps(figures)}", file=sys.stderr, flush=True)
    if path := os.environ.get("HALFMQ_FAULT_FIGURES"):
        with Path(path).open("a") as file:
            file.write(json.dumps(figures) + "\n")
