"""A cycle: clients at work, a trouble of the cluster, its end; then everything is judged."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pymysql

from faults.client import UNAVAILABLE, Client
from faults.clusters.epochs import Epochs
from faults.clusters.troubles import Trouble, trouble_of
from faults.history import judge
from faults.load import Load
from support.databases import connect

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    import grpc

    from faults.history import History
    from support.brokers import BrokerProcess
    from support.clusters import PrivateCluster

COMMITS_BEFORE, COMMITS_AFTER = 30, 50
PATIENCE = 6.0
TASKS = 3
RIVALS = 0.1
RECOVERY = 120.0
LOOK_EVERY = 0.05
NOTICED = 13.0
"""Seconds after which each kind of cluster has told its brokers that it has no quorum, and those their clients."""


def run_cycle(cluster: PrivateCluster, database: str, brokers: Sequence[BrokerProcess], seed: int) -> list[str]:
    """Everything that contradicts something else, in words."""
    trouble = trouble_of(cluster.kind, seed)
    print(f"{cluster.kind} cycle {seed}: {trouble}", file=sys.stderr, flush=True)
    endpoints = [broker.endpoint for broker in brokers]
    with (
        Epochs(endpoints) as epochs,
        Load(endpoints, tasks=TASKS, seed=seed, checked=True, rivals=RIVALS, patience=PATIENCE) as load,
    ):
        load.history.await_commits(COMMITS_BEFORE)
        primary = primary_of(cluster, database)
        victims = trouble.victims(cluster, primary)
        with standstill(load.history) as paused, elected(cluster, victims) as engine:
            trouble.begin(cluster, victims)
            if trouble.who == "the primary" and cluster.kind.endswith("pair"):
                cluster.promote(3 - primary)
            began = load.history.moment()
            load.codes.clear()
            time.sleep(trouble.lasts)
            went_on, codes = load.history.acknowledged, set(load.codes)
            stored = load.history.stored_since(began)
            trouble.end(cluster, victims)
            load.history.await_commits(COMMITS_AFTER, timeout=RECOVERY)
        # The next cycle begins with all members.
        cluster.start()
    try:
        with Client(endpoints[0]) as client:
            wrong = judge(load.history, load.finish(client))
            wrong += load.contradictions + epochs.judge(client)
    except BaseException:
        for broker in brokers:
            print(*(line for line in broker.lines if "halfmq.storage" in line), sep="\n", file=sys.stderr)
        raise
    if trouble.who == "the majority":
        wrong += without_quorum(trouble, stored, codes)
    for number, broker in enumerate(brokers):
        wrong += [f"broker {number}: {line}" for line in broker.lines if "[error" in line]
        if broker.process.poll() is not None:
            wrong.append(f"broker {number} ended by itself: {broker.process.returncode}")
    _tell(cluster, seed, trouble, load.history, went_on, epochs.committed, paused, engine, wrong)
    return wrong


def without_quorum(trouble: Trouble, stored: int, codes: Collection[grpc.StatusCode]) -> list[str]:
    """What must not be while the majority is away.

    Where servers say that they have none, or refuse connections, clients are told so, once the servers know it; one
    that says nothing is waited for, longer than they wait.
    """
    wrong = [f"{stored} calls were made without a quorum, and acknowledged"] if stored else []
    if trouble.how in {"killed", "cut off"} and trouble.lasts > NOTICED and UNAVAILABLE not in codes:
        wrong.append(f"without a quorum clients were told {sorted(code.name for code in codes)}, and not UNAVAILABLE")
    return wrong


def primary_of(cluster: PrivateCluster, database: str) -> int:
    """The member that brokers write to. All of Galera's are writable, so there a table tells."""
    if cluster.kind != "mariadb-cluster":
        return cluster.primary
    name = database.rpartition("/")[2]
    for member in cluster.members:
        with (
            suppress(pymysql.err.OperationalError),  # it is not in the cluster
            closing(connect(cluster.url_of(member), connect_timeout=2, read_timeout=2)) as own,
            own.cursor() as cursor,
        ):
            cursor.execute(
                f"SELECT COUNT(*) FROM {name}.cluster_writer WHERE slot = 0 AND SUBSTRING_INDEX(node, '#', 1) = (SELECT"
                " variable_value FROM information_schema.global_status WHERE variable_name = 'wsrep_gcomm_uuid')"
            )
            if cursor.fetchall() == ((1,),):
                return member
    raise AssertionError("brokers write to none of the members")


@contextmanager
def standstill(history: History) -> Iterator[list[float]]:
    """Takes the longest time without an acknowledged commit, in seconds."""
    longest: list[float] = [0.0]
    ended = threading.Event()

    def watch() -> None:
        seen, since = history.acknowledged, time.monotonic()
        while not ended.wait(LOOK_EVERY):
            now = time.monotonic()
            longest[0] = max(longest[0], now - since)
            if history.acknowledged != seen:
                seen, since = history.acknowledged, now

    watcher = threading.Thread(target=watch, name="standstill")
    watcher.start()
    try:
        yield longest
    finally:
        ended.set()
        watcher.join()


@contextmanager
def elected(cluster: PrivateCluster, victims: Sequence[int]) -> Iterator[list[float]]:
    """Takes the time until a member that is not hit commits, in seconds: the cluster's own, without brokers."""
    took: list[float] = []
    ended = threading.Event()

    def watch() -> None:
        began = time.monotonic()
        others = [member for member in cluster.members if member not in victims]
        while not took and not ended.wait(LOOK_EVERY):
            if any(_commits(cluster, member) for member in others):
                took.append(time.monotonic() - began)

    watcher = threading.Thread(target=watch, name="elected")
    watcher.start()
    try:
        yield took
    finally:
        ended.set()
        watcher.join()


def _commits(cluster: PrivateCluster, member: int) -> bool:
    """Whether a member takes a row of a table of the test's own."""
    try:
        with (
            closing(connect(cluster.url_of(member), connect_timeout=1, read_timeout=1, write_timeout=1)) as own,
            own.cursor() as cursor,
        ):
            cursor.execute("REPLACE INTO halfmq_cluster_probe.probe VALUES (1, UUID())")
            own.commit()
    except pymysql.err.MySQLError:
        return False
    return True


def _tell(
    cluster: PrivateCluster,
    seed: int,
    trouble: Trouble,
    history: History,
    went_on: int,
    epochs: int,
    paused: Sequence[float],
    engine: Sequence[float],
    wrong: Sequence[str],
) -> None:
    for each in wrong:
        print(f"  VIOLATION {each}", file=sys.stderr)
    figures = {
        "cluster": cluster.kind,
        "seed": seed,
        "who": trouble.who,
        "how": trouble.how,
        "lasted": round(trouble.lasts, 1),
        "standstill": round(paused[0], 2),
        "engine": round(engine[0], 2) if engine else None,
        "acknowledged": history.acknowledged,
        "acknowledged_at_its_end": went_on,
        "unanswered": history.unanswered,
        "epochs": epochs,
        "violations": len(wrong),
    }
    print(f"  {json.dumps(figures)}", file=sys.stderr, flush=True)
    if path := os.environ.get("HALFMQ_FAULT_FIGURES"):
        with Path(path).open("a") as file:
            file.write(json.dumps(figures) + "\n")
