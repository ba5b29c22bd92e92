"""Topics, groups, producers, members and sinks that come and go: each has a name that was never there before."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING

import grpc

from consumer_sdk import Consumer
from faults.client import COMMITTED, ROLLED_BACK, Client, message, new_id, unique
from faults.long.day import PATIENCE
from faults.many.clients import PacedClient
from halfmq.v1 import sink_pb2, sink_pb2_grpc
from producer_sdk import Admin, GroupMode, TagFilter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from faults.history import History
    from faults.many.notes import Notes

PAUSE = 0.5
SENT, EPOCH = 6, 5
KEPT_DEAD_LETTERS = 0.5
"""Of the groups that are deleted: their dead letter topic stays."""


class Visitor(PacedClient):
    """Makes a topic and a group, uses both, and deletes them; each time at another broker.

    Attributes:
        wrong: what was not as it must be.
        visits: how often.
    """

    what = "visitor"

    def __init__(self, endpoints: Sequence[str], number: int, seed: int, history: History, notes: Notes) -> None:
        super().__init__(endpoints, number, seed, history, notes)
        self.endpoints = list(endpoints)
        self.wrong: list[str] = []
        self.visits = 0

    def run(self) -> None:
        with ExitStack() as stack:
            clients = [stack.enter_context(Client(endpoint, PATIENCE, waits=True)) for endpoint in self.endpoints]
            admins = [stack.enter_context(Admin(endpoint)) for endpoint in self.endpoints]
            while not self.stopping.wait(self.fate.expovariate(1 / PAUSE)):
                turn = self.visits % len(clients)
                self._visit(clients[turn], clients[turn - 1], admins[turn], admins[turn - 1])
                self.visits += 1

    def _visit(self, client: Client, other: Client, admin: Admin, other_admin: Admin) -> None:
        topic, group = unique("visit"), unique("visit")
        admin.create_topic(topic, queues=2)
        admin.create_group(group, max_attempts=1, retry_delays=[0.1])
        other_admin.set_filter(group, topic, TagFilter("a || b"))
        sent = {new_id(): b"sent" for _ in range(SENT)}
        client.send_all(
            [message(topic, body, message_id=each, tag="a", keys=[each], dedup_key=each) for each, body in sent.items()]
        )
        committed, rolled_back = new_id(), new_id()
        producers = unique("visitors")
        with other.checks(producers, PATIENCE):
            for each in (committed, rolled_back):
                client.prepare(producers, each, [message(topic, b"half", tag="b")])
            other.commit(committed)
            other.roll_back(rolled_back)
        states = other.transaction(committed).state, client.transaction(rolled_back).state
        if states != (COMMITTED, ROLLED_BACK):
            self.wrong.append(f"{topic}: the states are {states}")
        self._consume(other, group, topic, {*sent, committed})
        if self.fate.random() < KEPT_DEAD_LETTERS:
            for _ in other_admin.purge_dead_letters(group):
                pass
            admin.delete_group(group)
            other_admin.delete_topic(f"%DLQ%{group}")
        else:
            admin.delete_group(group)
        other_admin.delete_topic(topic)

    def _consume(self, client: Client, group: str, topic: str, wanted: set[str]) -> None:
        """Handles all but one, which becomes a dead letter."""
        got: Counter[str] = Counter()
        refused = 0
        while len(got) < len(wanted):
            pulled = client.pull(group, topic, wait=5)
            if not pulled:
                self.wrong.append(f"{topic}: {len(got)} of {len(wanted)} messages came")
                return
            got.update(each.message.transaction_id for each in pulled)
            handles = [each.receipt_handle for each in pulled]
            if not refused:
                client.nack(handles[:1], "never")
                refused = 1
                handles = handles[1:]
            if handles:
                client.ack(handles)
        if got.keys() != wanted or max(got.values()) > 1:
            self.wrong.append(f"{topic}: {got} came in place of {wanted}")


class Members(PacedClient):
    """Consumers of a broadcasting group whose names are new each time."""

    what = "member"

    def __init__(
        self, endpoints: Sequence[str], number: int, seed: int, history: History, notes: Notes, *, topic: str
    ) -> None:
        super().__init__(endpoints, number, seed, history, notes)
        self._topic = topic
        self.group = unique("broadcast")
        self.members = 0

    def run(self) -> None:
        with Admin(self.endpoints) as admin:
            admin.create_group(self.group, mode=GroupMode.BROADCASTING)
        while not self.stopping.wait(self.fate.expovariate(1 / PAUSE)):
            with Consumer(self.endpoints, self.group, self._topic, client_id=unique("member")) as consumer:
                consumer.ack(consumer.receive(10, timeout=PAUSE))
            self.members += 1


class Sinks(PacedClient):
    """Jobs that write a few epochs each, give one up, and leave one behind; then their sinks are deleted.

    Attributes:
        wrong: what was not as it must be.
        epochs: how many were committed.
    """

    what = "sink"

    def __init__(
        self, endpoints: Sequence[str], number: int, seed: int, history: History, notes: Notes, *, topic: str
    ) -> None:
        super().__init__(endpoints, number, seed, history, notes)
        self._topic = topic
        self.wrong: list[str] = []
        self.epochs = 0

    def run(self) -> None:
        with grpc.insecure_channel(self.endpoints[0]) as channel:
            stub = sink_pb2_grpc.SinkServiceStub(channel)
            while not self.stopping.wait(self.fate.expovariate(1 / PAUSE)):
                self._job(stub)

    def _job(self, stub: sink_pb2_grpc.SinkServiceStub) -> None:
        sink = unique("sink")
        for number in range(3):
            attempt = self._prepare(stub, sink, number)
            self._prepare(stub, sink, number)  # An attempt that nobody commits.
            request = sink_pb2.CommitEpochRequest(
                epoch=sink_pb2.Epoch(sink=sink, query_id="query", number=number),
                attempts=[sink_pb2.EpochAttempt(attempt_id=attempt, messages=EPOCH)],
            )
            stub.CommitEpoch(request, timeout=PATIENCE)
            self.epochs += 1
        self._prepare(stub, sink, 3)
        stub.AbortEpoch(
            sink_pb2.AbortEpochRequest(epoch=sink_pb2.Epoch(sink=sink, query_id="query", number=3)), timeout=PATIENCE
        )
        self._prepare(stub, sink, 4)
        stub.DeleteSink(sink_pb2.DeleteSinkRequest(sink=sink), timeout=PATIENCE)

    def _prepare(self, stub: sink_pb2_grpc.SinkServiceStub, sink: str, number: int) -> str:
        attempt = new_id()
        request = sink_pb2.PrepareEpochRequest(
            epoch=sink_pb2.Epoch(sink=sink, query_id="query", number=number),
            attempt_id=attempt,
            transaction_id=new_id(),
            messages=[message(self._topic, f"{sink} {number}") for _ in range(EPOCH)],
        )
        stub.PrepareEpoch(request, timeout=PATIENCE)
        return attempt
