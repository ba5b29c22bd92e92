"""Writes about delay, recall, deduplication, and topics that are changed in use."""

from __future__ import annotations

from faults.client import COMMITTED, Client, message, new_id
from faults.operations import Commit, Operation, Prepare, Send
from halfmq.v1 import message_pb2

FAR = 3600.0


def later(topic: str, body: str, seconds: float = FAR, **rest: object) -> message_pb2.Message:
    """A delayed message; by default one that nobody waits for: it is recalled before its time."""
    wanted = message(topic, body, **rest)
    wanted.delay.FromMicroseconds(int(seconds * 1e6))
    return wanted


class SendLater(Send):
    """A message that waits; sent again, it keeps the time that it got first."""

    commits = "INSERT INTO scheduled_message"

    def act(self, client: Client) -> None:
        self.position = client.send(later(self.topic, self.body, message_id=self.transaction_id))

    def confirm(self, client: Client, *, lost: bool) -> None:
        (place,) = client.transaction(self.transaction_id).op.released
        assert place.scheduled_at == self.position.scheduled_at
        client.recall(self.transaction_id)


class CommitLater(Commit):
    """One message goes into the log, the other one waits."""

    commits = "INSERT INTO scheduled_message"

    def messages(self) -> list[message_pb2.Message]:
        return [message(self.topic, f"{self.body}, first"), later(self.topic, f"{self.body}, second")]

    def act(self, client: Client) -> None:
        result = client.commit(self.transaction_id)
        assert result.state == COMMITTED
        assert [place.HasField("scheduled_at") for place in result.released] == [False, True]
        self.released = [(place.queue, place.offset) for place in result.released[:1]]

    def confirm(self, client: Client, *, lost: bool) -> None:
        self.expected += self.bodies()[:1]
        ((queue, offset),) = self.released
        assert client.log(self.topic)[queue][offset].body.decode() == self.bodies()[0]
        client.recall(f"{self.transaction_id}.1")


class Recall(Operation):
    """Taking a message back; again, it has the same answer."""

    commits = "DELETE FROM scheduled_message"

    def arrange(self, client: Client) -> None:
        self.next_body()
        self.transaction_id = new_id()
        client.send(later(self.topic, self.body, message_id=self.transaction_id, dedup_key=self.body))

    def act(self, client: Client) -> None:
        self.recalled_at = client.recall(self.transaction_id)

    def survey(self, client: Client, *, worked: bool) -> None:
        (place,) = client.transaction(self.transaction_id).op.released
        assert place.HasField("recalled_at") == worked
        assert place.HasField("scheduled_at") != worked

    def confirm(self, client: Client, *, lost: bool) -> None:
        (place,) = client.transaction(self.transaction_id).op.released
        assert place.recalled_at == self.recalled_at
        client.send(message(self.topic, self.body, dedup_key=self.body))
        self.expected.append(self.body)


class SendOnce(Send):
    """A message with a dedup_key: whatever dies, one of all that are sent gets in."""

    commits = "INSERT INTO dedup_key"

    def act(self, client: Client) -> None:
        place = client.send(message(self.topic, self.body, message_id=self.transaction_id, dedup_key=self.body))
        self.place = (place.queue, place.offset)

    def confirm(self, client: Client, *, lost: bool) -> None:
        super().confirm(client, lost=lost)
        again = client.send(message(self.topic, "another", dedup_key=self.body))
        assert ((again.queue, again.offset), again.message_id) == (self.place, self.transaction_id)


class PrepareOnce(Prepare):
    """Half messages with dedup keys."""

    commits = "INSERT INTO dedup_key"

    def messages(self) -> list[message_pb2.Message]:
        return [message(self.topic, each, dedup_key=each) for each in (f"{self.body}, one", f"{self.body}, two")]


class UpdateTopic(Operation):
    """Adding a queue."""

    commits = "UPDATE topic SET queue_count"

    def arrange(self, client: Client) -> None:
        self.queues = 3 + self._rounds
        self.next_body()

    def act(self, client: Client) -> None:
        client.update_topic(self.topic, self.queues)

    def survey(self, client: Client, *, worked: bool) -> None:
        assert len(client.offsets(self.topic)) == (self.queues if worked else max(2, self.queues - 1))

    def confirm(self, client: Client, *, lost: bool) -> None:
        assert client.topics()[self.topic] == len(client.offsets(self.topic)) == self.queues
        client.send(message(self.topic, self.body))
        self.expected.append(self.body)


DELIVERY_OPERATIONS: tuple[type[Operation], ...] = (
    SendLater,
    CommitLater,
    Recall,
    SendOnce,
    PrepareOnce,
    UpdateTopic,
)
