"""Consumers on two brokers that are killed or stand still while they hold messages, also those of message groups.

HALFMQ_FAULT_ROUNDS is how often each is done (2).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from faults.client import PATIENCE, Client, message, new_id, unique
from faults.sites import rounds
from support.brokers import BrokerProcess
from support.databases import create_database, drop_database, server_url

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfmq.v1 import consumer_pb2

LEASE = 1.0
STALE = {"RECEIPT_STALE", "RECEIPT_GONE"}
_CHECKOUT = Path(__file__).parents[2]

pytestmark = pytest.mark.timeout(120 + 30 * rounds(2))


class Worker:
    """working_consumer.py as a process."""

    def __init__(self, endpoint: str, group: str, topic: str, count: int, *, lease: float = LEASE) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "faults.working_consumer", endpoint, group, topic, str(lease), str(count)],
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

    def anew(self) -> None:
        self.topic, self.group = self.clients[0].make_topic(queues=1), self.clients[0].make_group()

    def worker(self, number: int, count: int) -> Worker:
        """A consumer on one of the brokers."""
        endpoint = self.brokers[number % len(self.brokers)].endpoint
        self._workers.append(Worker(endpoint, self.group, self.topic, count))
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

    def close(self) -> None:
        for worker in self._workers:
            worker.close()
        for client in self.clients:
            client.close()
        for broker in self.brokers:
            broker.close()


@pytest.fixture(params=["sqlite", "mariadb", "mysql"], scope="module")
def kind(request: pytest.FixtureRequest) -> str:
    """Which database the test runs on."""
    return str(request.param)


@pytest.fixture(scope="module")
def place(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    if kind == "sqlite":
        database = f"sqlite:///{tmp_path_factory.mktemp('place') / 'halfmq.db'}"
    else:
        database = create_database(server_url(kind))  # type: ignore[arg-type]
    made = Place(database, kind)
    yield made
    made.close()
    if kind != "sqlite":
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


def test_killed_in_the_middle_of_a_batch(place: Place) -> None:
    for number in range(rounds(2)):
        place.anew()
        place.send("a1", "b1", "-1", "a2", "b2", "a3", "-2", "a4")
        victim, heir = place.worker(number, 8), 1 - number % 2
        assert by_group(victim.holds()) == {
            "-": ["-1", "-2"],
            "a": ["a1", "a2", "a3", "a4"],
            "b": ["b1", "b2"],
        }
        for body in ("a1", "b1", "-2", "a2", "b2"):
            assert victim.does(f"ack {body}") == "ok"
        victim.kill()
        place.send("a5", "b3")
        # b is through and goes on at once; the rest waits for the end of the dead one's lease.
        taken = place.take(heir, 4)
        assert by_group(names(taken))["a"] == ["a3", "a4"]
        attempts = {each.message.body.decode(): each.attempt for each in taken}
        # Of a message group the attempt is the first one's: those behind it were not tried.
        assert attempts == {"-1": 2, "a3": 2, "a4": 1, "b3": 1}
        acknowledge(place.clients[heir], taken)
        (last,) = place.take(1 - heir, 1)
        assert (names([last]), last.attempt) == (["a5"], 1)
        acknowledge(place.clients[heir], [last])
        assert place.all_handled()


def test_its_late_acks_are_refused_and_tell_why(place: Place) -> None:
    for number in range(rounds(2)):
        place.anew()
        place.send("-1", "-2")
        sleeper, heir = place.worker(number, 2), 1 - number % 2
        assert sleeper.holds() == ["-1", "-2"]
        sleeper.pause()
        taken = place.take(heir, 2)
        assert [(each.message.body, each.attempt) for each in taken] == [(b"-1", 2), (b"-2", 2)]
        acknowledge(place.clients[heir], taken[:1])
        sleeper.go_on()
        for words in ("ack -2", "nack -2", "extend -2", "ack -1"):
            answer = sleeper.does(words)
            assert answer.startswith("RECEIPT_STALE "), answer
            assert "its lease expired and somebody else has the message" in answer
        # It did no harm: the other one has the message still.
        assert place.clients[heir].pull(place.group, place.topic) == []
        acknowledge(place.clients[heir], taken[1:])
        answer = sleeper.does("ack -2")
        assert answer.startswith("RECEIPT_GONE "), answer
        assert "settled already" in answer
        assert place.all_handled()


def test_of_a_message_group_nothing_is_handled_in_another_order(place: Place) -> None:
    for number in range(rounds(2)):
        place.anew()
        place.send("a1", "a2", "b1", "a3")
        sleeper, heir = place.worker(number, 4), 1 - number % 2
        assert by_group(sleeper.holds()) == {"a": ["a1", "a2", "a3"], "b": ["b1"]}
        handled = []
        assert sleeper.does("ack a1") == "ok"
        handled.append("a1")
        sleeper.pause()
        place.send("a4", "b2")
        taken = place.take(heir, 3)
        assert by_group(names(taken)) == {"a": ["a2", "a3"], "b": ["b1"]}
        first, second = [each for each in taken if each.message.message_group == "a"]
        assert (first.attempt, second.attempt) == (2, 1)
        acknowledge(place.clients[heir], [first])
        handled.append("a2")
        sleeper.go_on()
        for words in ("ack a2", "ack a3", "nack a3", "ack b1", "extend a3"):
            reason, _, text = sleeper.does(words).partition(" ")
            assert reason in STALE, (words, reason)
            assert "somebody else has the message" in text or "delivered again" in text
        # It asks again, and gets nothing of a: that is the other one's.
        assert "a" not in {body[0] for body in names(place.clients[number % 2].pull(place.group, place.topic))}
        acknowledge(place.clients[heir], [second])
        handled.append("a3")
        (last,) = place.take(heir, 1)
        acknowledge(place.clients[heir], [last])
        handled += names([last])
        assert handled == ["a1", "a2", "a3", "a4"]


def test_it_goes_on_with_what_comes_next(place: Place) -> None:
    """The one that stood still is a consumer like any other afterwards."""
    place.anew()
    place.send("a1", "a2")
    sleeper = place.worker(0, 2)
    assert sleeper.holds() == ["a1", "a2"]
    sleeper.pause()
    first, second = place.take(1, 2)
    place.clients[1].nack([first.receipt_handle], "not here")
    sleeper.go_on()
    assert sleeper.does("ack a1").partition(" ")[0] == "RECEIPT_STALE"
    sleeper.tell("take")
    assert sleeper.holds() == ["a1", "a2"]
    (late,) = place.clients[1].ack([second.receipt_handle])
    assert late.error.reason == "RECEIPT_STALE"
    assert [sleeper.does("ack a1"), sleeper.does("ack a2")] == ["ok", "ok"]
    assert place.all_handled()
