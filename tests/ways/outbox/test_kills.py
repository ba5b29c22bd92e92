"""Relays and the broker are killed and frozen under load: each message is in the log once, and groups are in order.

HALFMQ_OUTBOX_KILLS is how often something is killed or frozen on each database (3, on two of them); in full:

    HALFMQ_OUTBOX_KILLS=200 scripts/test tests/ways/outbox/test_kills.py
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import threading
import time
from collections import Counter, defaultdict
from contextlib import ExitStack, closing
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import pytest
from sqlalchemy.orm import Session

from consumer_sdk import QueueReader
from producer_sdk import Admin, Message
from producer_sdk.outbox import Outbox
from support.brokers import BrokerProcess
from support.databases import LOCAL_KINDS
from support.forking import ForkedCommand
from ways.shops import ORDER

if TYPE_CHECKING:
    from ways.shops import Shop

KILLS = int(os.environ.get("HALFMQ_OUTBOX_KILLS", "3"))
RELAYS = 3
GROUPS = 12
TOPIC = "orders"
LEASE = 2.0
PATIENCE = 180.0


class Relays:
    """Processes of `halfmq relay`."""

    def __init__(self, shop: Shop, endpoint: str) -> None:
        self._arguments = ["relay", f"--database={shop.url}", f"--endpoint={endpoint}"]
        self._arguments += [f"--lease={LEASE}", "--batch=50"]
        self.running = [self._start() for _ in range(RELAYS)]
        for each in self.running:
            self._await(each)
        self._frozen: list[threading.Timer] = []

    def _start(self) -> ForkedCommand:
        made = ForkedCommand(self._arguments, {}, str(Path(__file__).parents[3]))
        threading.Thread(target=_read, args=(made.stderr,), daemon=True).start()
        return made

    def _await(self, started: ForkedCommand) -> None:
        assert started.stdout.readline().startswith("relaying as ")

    def kill(self, number: int) -> None:
        self.running[number].kill()
        self.running[number].wait(30)
        self.running[number].stdout.close()
        self.running[number] = self._start()
        self._await(self.running[number])

    def freeze(self, number: int, seconds: float) -> None:
        frozen = self.running[number]
        frozen.send_signal(signal.SIGSTOP)
        timer = threading.Timer(seconds, frozen.send_signal, (signal.SIGCONT,))
        timer.start()
        self._frozen.append(timer)

    def close(self) -> None:
        for timer in self._frozen:
            timer.join()
        for each in self.running:
            each.send_signal(signal.SIGTERM)
        try:
            assert {each.wait(60) for each in self.running} <= {0}
        except subprocess.TimeoutExpired:
            for each in self.running:
                each.kill()
            raise
        finally:
            for each in self.running:
                each.stdout.close()
            self.running = []


def _read(log: TextIO) -> None:
    with log:
        for line in log:
            print(line, end="")


class Writer(threading.Thread):
    """Business transactions of some message groups, one after the other; some are rolled back."""

    def __init__(self, shop: Shop, outbox: Outbox, number: int, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self._shop, self._outbox, self._over = shop, outbox, stop
        self._chance = random.Random(number)
        self._groups = [f"group-{number}-{each}" for each in range(GROUPS // 2)]
        self.committed: list[str] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            number = 0
            while not self._over.is_set():
                number += 1
                self._transact(number)
                time.sleep(self._chance.uniform(0, 0.004))
        except BaseException as error:
            self.error = error

    def _transact(self, number: int) -> None:
        group = self._chance.choice(self._groups)
        texts = [f"{group}:{number:06}:{part}" for part in range(self._chance.choice([1, 1, 3]))]
        alone = f"{self._groups[0]}-alone:{number:06}:0"
        with Session(self._shop.engine) as session:
            session.execute(ORDER, {"content": texts[0]})
            for text in texts:
                self._outbox.put(session, Message(TOPIC, text, message_group=group))
            self._outbox.put(session, Message(TOPIC, alone))
            if self._chance.random() < 0.1:
                session.rollback()
                return
            session.commit()
        self.committed += [*texts, alone]


def log_of(endpoint: str) -> list[list[str]]:
    """The texts of each queue, in their order."""
    found = []
    with QueueReader(endpoint) as reader:
        for queue in reader.queue_offsets(TOPIC):
            texts: list[str] = []
            offset = queue.min_offset
            while messages := reader.read_queue(TOPIC, queue.queue, offset, 1000).messages:
                texts += [each.text for each in messages]
                offset = messages[-1].offset + 1
            found.append(texts)
    return found


def free_port() -> int:
    with closing(socket.socket()) as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


@pytest.mark.parametrize("kind", LOCAL_KINDS if "HALFMQ_OUTBOX_KILLS" in os.environ else ["sqlite", "mysql"])
@pytest.mark.timeout(7200)
def test_each_message_is_in_the_log_once(shop: Shop, tmp_path: Path) -> None:
    chance = random.Random(KILLS)
    listen = f"127.0.0.1:{free_port()}"
    outbox = Outbox(shop.engine)
    outbox.create_tables()
    with ExitStack() as stack:
        brokers = [BrokerProcess(f"sqlite:///{tmp_path / 'broker.db'}", listen=listen)]

        def close_broker() -> None:
            brokers[-1].close()

        stack.callback(close_broker)
        with Admin(listen) as admin:
            admin.create_topic(TOPIC)
        relays = Relays(shop, listen)
        stack.callback(relays.close)
        stop = threading.Event()
        writers = [Writer(shop, outbox, number, stop) for number in range(1 if shop.kind == "sqlite" else 2)]
        for writer in writers:
            writer.start()
        done: Counter[str] = Counter()
        for number in range(KILLS):
            time.sleep(chance.uniform(0.2, 1.0))
            # Each kind of trouble comes in a short run, too.
            what = ["relay", "freeze", "broker"][number] if number < 3 else chance.choice(["relay", "freeze", "broker"])
            victim = _with_turn(outbox, relays) if chance.random() < 0.7 else chance.randrange(RELAYS)
            if what == "relay":
                relays.kill(victim)
            elif what == "freeze":
                relays.freeze(victim, chance.uniform(0.1, 2 * LEASE))
            else:
                brokers[-1].kill()
                brokers[-1].close()
                brokers.append(BrokerProcess(f"sqlite:///{tmp_path / 'broker.db'}", listen=listen))
            done[what] += 1
        stop.set()
        for writer in writers:
            writer.join(60)
            assert writer.error is None
        deadline = time.monotonic() + PATIENCE
        while outbox.status().counts:
            assert time.monotonic() < deadline, (outbox.status(), outbox.errors())
            time.sleep(0.1)
        relays.close()
        queues = log_of(listen)
        stack.pop_all()
        brokers[-1].close()
    committed = [text for writer in writers for text in writer.committed]
    assert Counter(text for queue in queues for text in queue) == Counter(committed)
    print(f"{shop.kind}: {len(committed)} messages, {dict(done)}")
    for queue in queues:
        groups: defaultdict[str, list[str]] = defaultdict(list)
        for text in queue:
            groups[text.partition(":")[0]].append(text)
        for group, texts in groups.items():
            overtaken = [pair for pair in pairwise(texts) if pair[0] > pair[1]]
            assert group.endswith("-alone") or not overtaken


def _with_turn(outbox: Outbox, relays: Relays) -> int:
    """The relay that sends; any, if none does."""
    owner = outbox.status().relay
    found = [number for number, each in enumerate(relays.running) if f"-{each.pid}-" in owner]
    return found[0] if found else 0
