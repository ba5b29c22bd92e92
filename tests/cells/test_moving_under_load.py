"""Topics move between three cells while clients are at work; movers and brokers are killed and frozen on the way.

HALFMQ_CELL_MOVES is the number of moves (3), HALFMQ_FAULT_SEED the seed of the first one, HALFMQ_FAULT_FIGURES a file
for a line of JSON of each move.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest

from faults.client import Client, new_id
from faults.history import judge
from faults.load import CHECKS, Load
from support.brokers import BrokerProcess
from support.command import environment_of, killed_when_it_tells, run
from support.databases import connect, create_database, drop_database, server_url

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from support.databases import Kind

MOVES = int(os.environ.get("HALFMQ_CELL_MOVES") or 3)
SEED = int(os.environ.get("HALFMQ_FAULT_SEED") or random.randrange(1 << 30))
BROKER = {**CHECKS, "reconnect_timeout": 2, "answer_timeout": 8}
PATIENCE = 6.0
COMMITS_BETWEEN = 25
LONGEST = 120.0
TROUBLES = (
    "none",
    "the mover is killed",
    "the mover is killed, and taken back",
    "a broker is killed",
    "a broker is frozen",
)
STEPS = ("copied", "sealed", "decided")
"""That the command tells of."""

pytestmark = pytest.mark.timeout(600 + 60 * MOVES)


@pytest.fixture
def databases(kind: Kind) -> Iterator[list[str]]:
    made = [create_database(server_url(kind)) for _ in range(3)]
    yield made
    for url in made:
        drop_database(url)


class Scene:
    """Two brokers on three cells, and the command that moves."""

    def __init__(self, databases: Sequence[str], stack: ExitStack) -> None:
        self.cells = ["home", "b", "c"]
        self.variables = {"HALFMQ_CELLS": f"b={databases[1]} c={databases[2]}"}
        self._database = databases[0]
        self._stack = stack
        self.brokers = [self._started("127.0.0.1:0") for _ in range(2)]

    def _started(self, listen: str) -> BrokerProcess:
        return self._stack.enter_context(BrokerProcess(self._database, self.variables, listen=listen, **BROKER))

    def kill_a_broker(self, number: int) -> None:
        """SIGKILL, and another one at its address."""
        broker = self.brokers[number]
        broker.kill()
        self.brokers[number] = self._started(broker.endpoint)

    def freeze_a_broker(self, number: int) -> None:
        """It stands still for longer than its locks last."""
        process = self.brokers[number].process
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(6)
        os.kill(process.pid, signal.SIGCONT)

    @property
    def _environment(self) -> dict[str, str]:
        return {"HALFMQ_DATABASE": self._database, **self.variables}

    def begin_to_move(self, topic: str, group: str, to: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "halfmq_cli", "cells", "move", "--topic", topic, "--group", group, "--to", to],
            env=environment_of(self._environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def move_and_kill(self, topic: str, group: str, to: str, step: str) -> str:
        """Kills the command when it has told of a step; what it wrote."""
        arguments = ["cells", "move", "--topic", topic, "--group", group, "--to", to]
        return killed_when_it_tells(step, *arguments, variables=self._environment)

    def go_on(self, how: str) -> str:
        """Ends a move that was left; what the command says."""
        done = run("cells", "move", how, variables=self._environment)
        return f"{done.returncode} {done.stdout}{done.stderr}"

    def cell_of(self, topic: str) -> str:
        """The one cell that has a topic."""
        found = [
            name
            for name, url in zip(self.cells, [self._database, *self._others], strict=True)
            if rows(url, "SELECT 1 FROM topic WHERE name = %s AND deleted_at IS NULL", topic)
        ]
        assert len(found) == 1, f"{topic} is in {found}"
        return found[0]

    @property
    def _others(self) -> list[str]:
        return [part.partition("=")[2] for part in self.variables["HALFMQ_CELLS"].split()]


def await_certainty(client: Client) -> None:
    """Waits until what is nowhere is not found: for a moment after a move it might be on its way."""
    until = time.monotonic() + 30
    while True:
        try:
            client.transaction(new_id())
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                return
            assert time.monotonic() < until, error
            time.sleep(0.5)


def rows(url: str, query: str, *values: str) -> list[tuple[object, ...]]:
    with connect(url) as own, own.cursor() as cursor:
        cursor.execute(query, values)
        return list(cursor.fetchall())


def move(scene: Scene, load: Load, fate: random.Random) -> dict[str, object]:
    """Moves the load's topic to another cell, with a trouble; what happened."""
    before = scene.cell_of(load.topic)
    to = fate.choice([name for name in scene.cells if name != before])
    trouble = fate.choice(TROUBLES)
    began = time.monotonic()
    if trouble.startswith("the mover"):
        said = scene.move_and_kill(load.topic, load.group, to, fate.choice(STEPS))
        if "taken back" in trouble:
            said += scene.go_on("--give-up")
        # Nothing is left of one that was taken back; one that was decided cannot be.
        said += scene.go_on("--resume")
    else:
        mover = scene.begin_to_move(load.topic, load.group, to)
        time.sleep(fate.uniform(0.3, 2.0))
        if trouble == "a broker is killed":
            scene.kill_a_broker(fate.randrange(2))
        elif trouble == "a broker is frozen":
            scene.freeze_a_broker(fate.randrange(2))
        said = mover.communicate(timeout=LONGEST)[0]
        if mover.returncode:
            # Such as a database transaction that was ended: it is taken up again.
            said += scene.go_on("--resume")
    after = scene.cell_of(load.topic)
    return {
        "trouble": trouble,
        "from": before,
        "to": to,
        "is_in": after,
        "seconds": round(time.monotonic() - began, 1),
        "said": said[-600:],
    }


def test_nothing_acknowledged_is_lost_while_topics_move(databases: list[str]) -> None:
    fate = random.Random(SEED)
    moves: list[dict[str, object]] = []
    with ExitStack() as stack:
        scene = Scene(databases, stack)
        endpoints = [broker.endpoint for broker in scene.brokers]
        load = Load(endpoints, tasks=3, seed=SEED, checked=True, rivals=0.1, patience=PATIENCE, unknown_places=True)
        with load:
            for number in range(MOVES):
                load.history.await_commits(COMMITS_BETWEEN, timeout=LONGEST)
                moves.append({"seed": SEED, "number": number, **move(scene, load, fate)})
                print(json.dumps(moves[-1]), file=sys.stderr, flush=True)
                if path := os.environ.get("HALFMQ_FAULT_FIGURES"):
                    with Path(path).open("a") as file:
                        file.write(json.dumps({**moves[-1], "acknowledged": load.history.acknowledged}) + "\n")
            load.history.await_commits(COMMITS_BETWEEN, timeout=LONGEST)
        with Client(endpoints[0]) as client:
            await_certainty(client)
            wrong = judge(load.history, load.finish(client)) + load.contradictions
        for broker in scene.brokers:
            wrong += [line for line in broker.lines if "[error" in line]
        print(f"{load.history.acknowledged} commits acknowledged", *wrong, sep="\n", file=sys.stderr)
        assert wrong == []
    if MOVES > 1:
        assert any(each["from"] != each["is_in"] for each in moves)
