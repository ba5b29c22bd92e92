"""A broker stopped or cut off in the middle of a database transaction keeps its locks: others go on nevertheless.

The server ends the session of such a broker after `HOLD_LIMIT` seconds. Until then, sends to other topics go on, sends
to the held one take another queue or wait, and delayed messages of other topics are delivered. Nothing fails.
"""

from __future__ import annotations

import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Literal, Self, TypeAlias

import pytest

from faults.client import PATIENCE, Client, message, new_id, unique
from faults.sites import Proxied
from support.brokers import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from support.databases import Kind

How: TypeAlias = Literal["frozen", "vanished"]
# How long calls are made: more than a broker's patience after the moment of the fault.
LONG = 13.0
SENDERS = 4

pytestmark = pytest.mark.parametrize("how", ["frozen", "vanished"])


class Holder:
    """A broker that stops at a COMMIT, with all its locks, until the end."""

    def __init__(self, database: str, how: How, matching: str, **settings: object) -> None:
        self._how = how
        self._thaw = threading.Event()
        self.place = Proxied(database, **settings)
        self.rule = self.place.proxy.on_commit(matching=matching, when="before", action=self._hold)
        self.holds = threading.Event()

    def _hold(self) -> None:
        if self._how == "frozen":
            self.place.broker.process.send_signal(signal.SIGSTOP)
        else:
            self.place.proxy.pause()  # Neither end hears anything of the other any more, nor that it is gone.
        self.holds.set()
        self._thaw.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.place.proxy.clear()
        if self._how == "frozen":
            self.place.broker.process.send_signal(signal.SIGCONT)
        self._thaw.set()
        self.place.proxy.resume()
        self.place.close()


def keeps_sending(client: Client, topic: str, group: str = "") -> list[Exception]:
    """Sends one message after the other for some time; what failed."""
    failed: list[Exception] = []
    until = time.monotonic() + LONG
    while time.monotonic() < until:
        try:
            client.send(message(topic, "one", message_group=group))
        except Exception as error:
            failed.append(error)
    return failed


def test_sends_and_delayed_messages_go_on(kind: Kind, fresh_database: Callable[[Kind], str], how: How) -> None:
    database = fresh_database(kind)
    with (
        Holder(database, how, "UPDATE queue") as holder,
        BrokerProcess(database, drain=0) as healthy,
        Client(healthy.endpoint) as client,
        ThreadPoolExecutor(4 * SENDERS) as threads,
    ):
        held, other, delayed = client.make_topic(1), client.make_topic(1), client.make_topic(1)
        wide = client.make_topic(4)
        group = client.make_group()
        client.pull(group, delayed)
        threads.submit(holder.place.client.send, message(held, "never acknowledged"))
        assert holder.holds.wait(PATIENCE)
        later = message(delayed, "later")
        later.delay.FromMilliseconds(500)
        client.send(later)
        also = message(held, "also")
        also.delay.FromMilliseconds(200)
        client.send(also)
        sends = [
            threads.submit(keeps_sending, client, topic, own)
            for topic, own in ((held, ""), (other, ""), (wide, "g"), (other, "g"))
            for _ in range(SENDERS)
        ]
        assert [each.message.body for each in client.pull(group, delayed, wait=PATIENCE)] == [b"later"]
        assert [error for each in sends for error in each.result()] == []
        bodies = [each.body for queue in client.log(held).values() for each in queue]
        assert b"also" in bodies
        assert b"never acknowledged" not in bodies
        assert healthy.count("[error") == 0, healthy.log


def test_a_repetition_elsewhere_and_its_neighbours(kind: Kind, fresh_database: Callable[[Kind], str], how: How) -> None:
    """The client of the stopped broker comes to another one with the same ids."""
    database = fresh_database(kind)
    with (
        Holder(database, how, "INSERT INTO op_record") as holder,
        BrokerProcess(database, drain=0) as healthy,
        Client(healthy.endpoint) as client,
        ThreadPoolExecutor(4 * SENDERS) as threads,
    ):
        held, other, producers = client.make_topic(4), client.make_topic(1), unique("producers")
        ids = [new_id() for _ in range(SENDERS)]
        for each in ids:
            client.prepare(producers, each, [message(held, each)], check_after=3600)
        threads.submit(holder.place.client.commit, ids[0])
        assert holder.holds.wait(PATIENCE)
        commits = [threads.submit(client.commit, each) for each in ids]
        sends = [threads.submit(keeps_sending, client, other) for _ in range(SENDERS)]
        for commit in commits:
            commit.result()
        assert [error for each in sends for error in each.result()] == []
        bodies = sorted(each.body.decode() for queue in client.log(held).values() for each in queue)
        assert bodies == sorted(ids)
        assert healthy.count("[error") == 0, healthy.log


def test_a_scheduler_that_stops_is_followed_by_another(
    kind: Kind, fresh_database: Callable[[Kind], str], how: How
) -> None:
    database = fresh_database(kind)
    with (
        Holder(database, how, "scheduled_message AS t|DELETE t FROM .* scheduled_message") as holder,
        Client(holder.place.broker.endpoint) as first,
    ):
        topic, group = first.make_topic(1), first.make_group()
        due = message(topic, "due")
        due.delay.FromMilliseconds(300)
        first.send(due)
        assert holder.holds.wait(PATIENCE)
        with BrokerProcess(database, drain=0) as healthy, Client(healthy.endpoint) as client:
            assert [each.message.body for each in client.pull(group, topic, wait=PATIENCE)] == [b"due"]
            assert healthy.count("[error") == 0, healthy.log
