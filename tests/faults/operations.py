"""Every write of the broker as a subject for faults: set it up, do it, do it again, and count its effects.

An operation has topics and groups of its own. One round is `arrange`, `act` (repeated with the same ids when it
failed; `survey` sees what the first try left), `confirm`; after all rounds `verify` compares the log, the deliveries
and the open transactions with what the rounds should have left.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal, TypeAlias

from faults.client import COMMITTED, PREPARED, ROLLED_BACK, Client, message, new_id, unique
from halfmq.v1 import consumer_pb2, message_pb2, transaction_pb2

When: TypeAlias = Literal["before", "after"]

# Settings of the brokers that operations run on: checks that come soon, and few of them.
MAX_CHECKS = 6
SETTINGS = {"first_check": 0.05, "check_interval": 0.3, "max_checks": MAX_CHECKS}
# What a receipt that was settled in the first try may be told when its owner repeats the call.
SETTLED_BEFORE = {"RECEIPT_GONE", "RECEIPT_STALE"}


class Operation(ABC):
    """A write; `commits` is found in the statements of the database transaction that does it."""

    commits: ClassVar[str]

    def __init__(self, client: Client) -> None:
        self.topic = client.make_topic()
        self.group = client.make_group()
        self.producers = unique("producers")
        self.expected: list[str] = []
        self.open: set[str] = set()
        self.reasons: list[str] = []
        self.transaction_id = ""
        self.body = ""
        self._rounds = 0

    def next_body(self) -> str:
        self._rounds += 1
        self.body = f"{type(self).__name__} {self._rounds}"
        return self.body

    def messages(self) -> list[message_pb2.Message]:
        """The two messages of this round's transaction."""
        return [message(self.topic, f"{self.body}, {half}", tag=half) for half in ("first", "second")]

    def bodies(self) -> list[str]:
        return [each.body.decode() for each in self.messages()]

    @abstractmethod
    def arrange(self, client: Client) -> None:
        """Everything that comes before the call."""

    @abstractmethod
    def act(self, client: Client) -> None:
        """The call, with the ids of this round."""

    def survey(self, client: Client, *, worked: bool) -> None:  # noqa: B027
        """Looks at what is there after the broker died and before the call is repeated; `worked`: its COMMIT did."""

    @abstractmethod
    def confirm(self, client: Client, *, lost: bool) -> None:
        """Looks at the effect of this round; `lost`: a claim was made, and the broker died with it."""

    def verify(self, client: Client) -> None:
        """All rounds together left exactly what they should."""
        found = []
        for offset, entries in zip(client.offsets(self.topic), client.log(self.topic).values(), strict=True):
            assert [entry.offset for entry in entries] == list(range(offset.max_offset))
            found += [entry.body.decode() for entry in entries]
        assert sorted(found) == sorted(self.expected)
        delivered = client.drain(client.make_group(), self.topic)
        assert sorted(delivery.message.body.decode() for delivery in delivered) == sorted(self.expected)
        assert {delivery.attempt for delivery in delivered} <= {1}
        assert client.undecided(self.producers) == self.open


class Prepare(Operation):
    commits = "INSERT INTO half_message"

    def arrange(self, client: Client) -> None:
        self.next_body()
        self.transaction_id = new_id()

    def act(self, client: Client) -> None:
        result = client.prepare(self.producers, self.transaction_id, self.messages(), check_after=3600)
        assert result.state == PREPARED

    def confirm(self, client: Client, *, lost: bool) -> None:
        found = client.transaction(self.transaction_id)
        assert found.state == PREPARED
        assert [half.body.decode() for half in found.halves] == self.bodies()
        if self._rounds % 2:
            client.commit(self.transaction_id)
            self.expected += self.bodies()
        else:
            self.open.add(self.transaction_id)


class Commit(Operation):
    commits = "INSERT INTO op_record"

    def arrange(self, client: Client) -> None:
        self.next_body()
        self.transaction_id = new_id()
        client.prepare(self.producers, self.transaction_id, self.messages(), check_after=3600)

    def act(self, client: Client) -> None:
        result = client.commit(self.transaction_id)
        assert result.state == COMMITTED
        self.released = [(place.queue, place.offset) for place in result.released]
        assert len(self.released) == 2

    def confirm(self, client: Client, *, lost: bool) -> None:
        self.expected += self.bodies()
        log = client.log(self.topic)
        assert [log[queue][offset].body.decode() for queue, offset in self.released] == self.bodies()
        op = client.transaction(self.transaction_id).op
        assert (op.state, op.source) == (COMMITTED, transaction_pb2.VERDICT_SOURCE_PRODUCER)
        assert [(place.queue, place.offset) for place in op.released] == self.released


class Rollback(Operation):
    commits = "INSERT INTO op_record"

    def arrange(self, client: Client) -> None:
        self.next_body()
        self.transaction_id = new_id()
        client.prepare(self.producers, self.transaction_id, self.messages(), check_after=3600)

    def act(self, client: Client) -> None:
        assert client.roll_back(self.transaction_id, "not today").state == ROLLED_BACK

    def confirm(self, client: Client, *, lost: bool) -> None:
        found = client.transaction(self.transaction_id)
        assert (found.state, found.op.reason, list(found.halves)) == (ROLLED_BACK, "not today", [])


class Send(Operation):
    commits = "INSERT INTO message"

    def arrange(self, client: Client) -> None:
        self.next_body()
        self.transaction_id = new_id()

    def act(self, client: Client) -> None:
        place = client.send(message(self.topic, self.body, message_id=self.transaction_id))
        self.place = (place.queue, place.offset)

    def confirm(self, client: Client, *, lost: bool) -> None:
        self.expected.append(self.body)
        queue, offset = self.place
        assert client.log(self.topic)[queue][offset].body.decode() == self.body


class Pull(Operation):
    """The claim of a pull. When its COMMIT worked and nobody heard of it, the lease has to run out first."""

    commits = "INSERT INTO lease"

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        assert client.pull(self.group, self.topic) == []  # the group joins

    def arrange(self, client: Client) -> None:
        client.send(message(self.topic, self.next_body()))
        self.expected.append(self.body)

    def act(self, client: Client) -> None:
        self.deliveries = client.pull(self.group, self.topic, 1, wait=20, lease=0.3)

    def confirm(self, client: Client, *, lost: bool) -> None:
        assert [delivery.message.body.decode() for delivery in self.deliveries] == [self.body]
        assert self.deliveries[0].attempt == (2 if lost else 1)
        # A lease that ran out is still good for as long as nobody else asked for the message.
        results = client.ack([delivery.receipt_handle for delivery in self.deliveries])
        assert not [result for result in results if result.HasField("error")]
        assert_handled(client, self)


class Receipts(Operation):
    """What is said about deliveries. A queue is one range, so both messages share a lease."""

    whole = True
    attempts = 0
    lease = 600.0

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self.topic = client.make_topic(queues=1)
        self.group = client.make_group(max_attempts=self.attempts)

    def arrange(self, client: Client) -> None:
        self.next_body()
        for body in self.bodies():
            client.send(message(self.topic, body))
        self.expected += self.bodies()
        self.handles = self.take(client, attempt=1)

    def take(self, client: Client, attempt: int) -> list[str]:
        wanted = self.bodies() if self.whole or attempt == 1 else self.bodies()[:1]
        # No room is left: a pull that looks again for more would take over its own lease, once that has run out.
        deliveries = client.pull(self.group, self.topic, len(wanted), lease=self.lease)
        assert [(each.message.body.decode(), each.attempt) for each in deliveries] == [(b, attempt) for b in wanted]
        return [delivery.receipt_handle for delivery in deliveries]

    @property
    def named(self) -> list[str]:
        """The handles that the call is about; the other is settled by `confirm`."""
        return self.handles if self.whole else self.handles[:1]

    def note(self, results: list[consumer_pb2.ReceiptResult]) -> None:
        assert [result.receipt_handle for result in results] == self.named
        self.reasons += [result.error.reason for result in results if result.HasField("error")]

    def finish(self, client: Client, handles: list[str]) -> None:
        if handles:
            assert not [result for result in client.ack(handles) if result.HasField("error")]
        assert_handled(client, self)


class Ack(Receipts):
    commits = "(DELETE .*|UPDATE) *lease"

    def act(self, client: Client) -> None:
        self.note(client.ack(self.named))

    def confirm(self, client: Client, *, lost: bool) -> None:
        self.finish(client, [] if self.whole else self.handles[1:])


class AckPart(Ack):
    whole = False


class Nack(Receipts):
    commits = "INSERT INTO lease"

    def act(self, client: Client) -> None:
        self.note(client.nack(self.named, "no stock"))

    def confirm(self, client: Client, *, lost: bool) -> None:
        again = self.take(client, attempt=2)
        self.finish(client, again if self.whole else [*self.handles[1:], *again])


class NackPart(Nack):
    whole = False


class DeadLetter(Receipts):
    """The nack of the last delivery that a group allows."""

    commits = "INSERT INTO message"
    attempts = 1

    def act(self, client: Client) -> None:
        results = client.nack(self.named, "no stock")
        self.note(results)
        self.places = [result.dead_letter.offset for result in results if result.HasField("dead_letter")]

    def confirm(self, client: Client, *, lost: bool) -> None:
        dead = client.log(f"%DLQ%{self.group}")[0]
        assert [each.body.decode() for each in dead] == self.expected
        assert [each.offset for each in dead] == list(range(len(dead)))
        if not self.reasons:
            assert self.places == [len(dead) - 2, len(dead) - 1]
        assert_handled(client, self)


class CheckClaim(Operation):
    """Counting a check. One that was counted when nobody heard of it is spent, and the next one follows."""

    commits = "INSERT INTO transaction_check"

    def arrange(self, client: Client) -> None:
        self.next_body()
        self.transaction_id = new_id()
        client.prepare(self.producers, self.transaction_id, self.messages())

    def act(self, client: Client) -> None:
        with client.checks(self.producers) as checks:
            self.check = checks.next(self.transaction_id)
            checks.commit(self.check)

    def confirm(self, client: Client, *, lost: bool) -> None:
        assert [half.body.decode() for half in self.check.messages] == self.bodies()
        assert self.check.check_number == (2 if lost else 1)
        self.confirm_verdict(client)

    def confirm_verdict(self, client: Client) -> None:
        found = client.transaction(self.transaction_id)
        assert found.state == COMMITTED
        assert self.check.check_number <= found.check_count <= MAX_CHECKS
        assert [record.check_number for record in found.checks] == list(range(1, found.check_count + 1))
        assert found.op.source == transaction_pb2.VERDICT_SOURCE_CHECK
        self.expected += self.bodies()


class CheckAnswer(CheckClaim):
    """The verdict that a producer gave to a check."""

    commits = "INSERT INTO op_record"

    def act(self, client: Client) -> None:
        if client.transaction(self.transaction_id).state == PREPARED:
            super().act(client)

    def confirm(self, client: Client, *, lost: bool) -> None:
        self.confirm_verdict(client)


class CheckNote(CheckAnswer):
    """The answer's entry in the check history, which comes before the verdict."""

    commits = "UPDATE transaction_check SET answered_at"

    def confirm(self, client: Client, *, lost: bool) -> None:
        super().confirm(client, lost=lost)
        found = client.transaction(self.transaction_id)
        answers = [record.verdict for record in found.checks if record.HasField("answered_at")]
        assert answers
        assert set(answers) == {transaction_pb2.CHECK_VERDICT_COMMIT}


OPERATIONS: tuple[type[Operation], ...] = (
    Prepare,
    Commit,
    Rollback,
    Send,
    Pull,
    Ack,
    AckPart,
    Nack,
    NackPart,
    DeadLetter,
    CheckClaim,
    CheckAnswer,
    CheckNote,
)


def assert_handled(client: Client, operation: Operation) -> None:
    """The group has nothing left to handle, and nothing is out."""
    for each in client.offsets(operation.topic, operation.group):
        assert (each.committed_offset, each.lag) == (each.max_offset, 0)
    assert client.pull(operation.group, operation.topic) == []
