"""Writes to leases that no receipt settles: keeping them for longer, and taking over those that ran out."""

from __future__ import annotations

from faults.client import Client, message
from faults.operations import Operation, Receipts, assert_handled

SHORT = 0.3
SHORTEST = 0.1


class ExtendLease(Receipts):
    """A longer lease. Another message, whose lease is as short and stays so, shows when it would have run out."""

    commits = "UPDATE lease SET"

    def arrange(self, client: Client) -> None:
        self.next_body()
        self.handles = []
        for body in self.bodies():
            client.send(message(self.topic, body))
            self.handles += [each.receipt_handle for each in client.pull(self.group, self.topic, 1, lease=SHORT)]
        self.expected += self.bodies()
        assert len(self.handles) == 2

    def act(self, client: Client) -> None:
        (result,) = client.extend(self.handles[:1], 600)
        assert not result.HasField("error"), result.error.reason

    def confirm(self, client: Client, *, lost: bool) -> None:
        again = client.pull(self.group, self.topic, wait=20, lease=600)
        assert [(each.message.body.decode(), each.attempt) for each in again] == [(self.bodies()[1], 2)]
        self.finish(client, [self.handles[0], again[0].receipt_handle])


class TakeOver(Receipts):
    """A lease that ran out goes to the next consumer. When nobody heard of it, that one has to run out as well."""

    commits = "UPDATE lease SET"
    lease = SHORTEST

    def act(self, client: Client) -> None:
        self.deliveries = client.pull(self.group, self.topic, 2, wait=20, lease=SHORT)

    def confirm(self, client: Client, *, lost: bool) -> None:
        attempt = 3 if lost else 2
        assert [(each.message.body.decode(), each.attempt) for each in self.deliveries] == [
            (body, attempt) for body in self.bodies()
        ]
        late = client.ack(self.handles)
        assert {result.error.reason for result in late} == {"RECEIPT_STALE"}
        self.finish(client, [each.receipt_handle for each in self.deliveries])


class TakeOverPart(TakeOver):
    """The consumer has room for the first message only: the second one keeps its lease, and is due before it."""

    def act(self, client: Client) -> None:
        self.deliveries = client.pull(self.group, self.topic, 1, wait=20, lease=SHORT)

    def confirm(self, client: Client, *, lost: bool) -> None:
        attempts: dict[str, int] = {}
        deliveries = self.deliveries
        while True:
            attempts |= {each.message.body.decode(): each.attempt for each in deliveries}
            assert not [
                result for result in client.ack([e.receipt_handle for e in deliveries]) if result.HasField("error")
            ]
            if len(attempts) == 2:
                break
            deliveries = client.pull(self.group, self.topic, wait=20, lease=600)
        first, second = self.bodies()
        assert attempts == {first: 3 if lost else 2, second: 2}
        assert_handled(client, self)


class DeadLetterByExpiry(Receipts):
    """The last delivery that a group allows was never settled: the next pull moves the message away."""

    commits = "INSERT INTO message"
    attempts = 1
    lease = SHORTEST

    def dead(self, client: Client) -> list[str]:
        entries = client.log(f"%DLQ%{self.group}")[0]
        assert [entry.offset for entry in entries] == list(range(len(entries)))
        assert all("expired" in entry.properties["halfmq.reason"] for entry in entries)
        return [entry.body.decode() for entry in entries]

    def act(self, client: Client) -> None:
        while len(self.dead(client)) < len(self.expected):
            assert client.pull(self.group, self.topic, wait=0.05) == []

    def survey(self, client: Client, *, worked: bool) -> None:
        assert self.dead(client) == (self.expected if worked else self.expected[:-2])
        assert sum(each.lag for each in client.offsets(self.topic, self.group)) == (0 if worked else 2)

    def confirm(self, client: Client, *, lost: bool) -> None:
        assert self.dead(client) == self.expected
        assert {result.error.reason for result in client.ack(self.handles)} == {"RECEIPT_GONE"}
        assert_handled(client, self)


LEASE_OPERATIONS: tuple[type[Operation], ...] = (ExtendLease, TakeOver, TakeOverPart, DeadLetterByExpiry)
