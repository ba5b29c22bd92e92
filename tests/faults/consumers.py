"""Consumers as processes, on two brokers of one database; for tests that kill them or have them stand still."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from faults.client import PATIENCE, Client, message, new_id, unique
from support.brokers import BrokerProcess
from support.databases import create_database, drop_database, server_url

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfmq.v1 import consumer_pb2

LEASE = 1.0
_CHECKOUT = Path(__file__).parents[2]


class Worker:
    """working_consumer.py or handling_consumer.py as a process; `last` is its last argument."""

    def __init__(self, script: str, endpoint: str, group: str, topic: str, last: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", f"faults.{script}", endpoint, group, topic, str(LEASE), str(last)],
            cwd=_CHECKOUT / "tests",
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def holds(self) -> list[str]:
        word, *bodies = self.said().split()
        assert word == "holds"
        return bodies

    def said(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def tell(self, words: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{words}\n")
        self.process.stdin.flush()

    def does(self, words: str) -> str:
        self.tell(words)
        return self.said()

    def pause(self) -> None:
        """SIGSTOP; returns when it stands still."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


class Place:
    """Two brokers on a database (an embedded one has one), a topic and a group, and the consumers of a test."""

    def __init__(self, database: str, kind: str) -> None:
        self.brokers = [BrokerProcess(database) for _ in range(1 if kind == "sqlite" else 2)]
        self.clients = [Client(self.brokers[0].endpoint), Client(self.brokers[-1].endpoint)]
        self._workers: list[Worker] = []
        self.topic = self.group = ""

    def anew(self, max_attempts: int = 0) -> None:
        self.topic, self.group = self.clients[0].make_topic(queues=1), self.clients[0].make_group(max_attempts)

    def worker(self, number: int, count: int) -> Worker:
        """A consumer on one of the brokers that takes so many messages."""
        return self._started("working_consumer", number, count)

    def handler(self, number: int, form: str, prefetch: int) -> Worker:
        """A consumer on one of the brokers, with run() of the SDK."""
        return self._started("handling_consumer", number, f"{form}:{prefetch}")

    def _started(self, script: str, number: int, last: object) -> Worker:
        endpoint = self.brokers[number % len(self.brokers)].endpoint
        self._workers.append(Worker(script, endpoint, self.group, self.topic, last))
        return self._workers[-1]

    def send(self, *names: str) -> None:
        """Messages such as "a1" (of message group a) and "-1" (of none); every other group of them as half messages."""
        wanted = [message(self.topic, name, message_group="" if name[0] == "-" else name[0]) for name in names]
        middle = len(wanted) // 2
        self.clients[0].send_all(wanted[:middle])
        transaction = new_id()
        self.clients[1].prepare(unique("shop"), transaction, wanted[middle:], check_after=600)
        self.clients[0].commit(transaction)

    def take(self, number: int, count: int, *, lease: float = 600) -> list[consumer_pb2.Delivery]:
        """As many messages, by this process and one of the brokers."""
        found: list[consumer_pb2.Delivery] = []
        client, until = self.clients[number], time.monotonic() + PATIENCE
        while len(found) < count:
            assert time.monotonic() < until, names(found)
            found += client.pull(self.group, self.topic, count - len(found), wait=2, lease=lease)
        return found

    def all_handled(self) -> bool:
        return not any(each.lag for each in self.clients[1].offsets(self.topic, self.group))

    def await_handled(self) -> None:
        """Looks until all messages are handled; nothing tells when that is."""
        until = time.monotonic() + PATIENCE
        while not self.all_handled():
            assert time.monotonic() < until, self.clients[1].offsets(self.topic, self.group)
            time.sleep(0.01)

    def close(self) -> None:
        for worker in self._workers:
            worker.close()
        for client in self.clients:
            client.close()
        for broker in self.brokers:
            broker.close()


def places(kind: str, folder: Path) -> Iterator[Place]:
    """A place that is closed in the end; no broker may have met an error."""
    embedded = kind == "sqlite"
    database = f"sqlite:///{folder / 'halfmq.db'}" if embedded else create_database(server_url(kind))  # type: ignore[arg-type]
    made = Place(database, kind)
    yield made
    made.close()
    if not embedded:
        drop_database(database)
    for broker in made.brokers:
        assert broker.process.returncode == 0, broker.log
        assert broker.count("[error") == 0, broker.log


def names(deliveries: list[consumer_pb2.Delivery]) -> list[str]:
    return [each.message.body.decode() for each in deliveries]


def by_group(bodies: list[str]) -> dict[str, list[str]]:
    return {letter: [body for body in bodies if body[0] == letter] for letter in sorted({body[0] for body in bodies})}


def acknowledge(client: Client, deliveries: list[consumer_pb2.Delivery]) -> None:
    results = client.ack([each.receipt_handle for each in deliveries])
    assert not [result for result in results if result.HasField("error")], results
