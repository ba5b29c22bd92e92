"""Writes about names: topics and groups that are made and deleted, and groups that are named for the first time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc

from faults.client import UNAVAILABLE, Client, code_of, message, new_id, unique
from faults.operations import Operation, Prepare

if TYPE_CHECKING:
    from collections.abc import Callable

OK = grpc.StatusCode.OK


class Naming(Operation):
    """A call that names something; repeated after it had worked, it is told that nothing is left to do."""

    done_before: grpc.StatusCode
    name: str
    said: grpc.StatusCode

    def note(self, call: Callable[[str], None]) -> None:
        """Makes the call, and remembers the answer."""
        try:
            call(self.name)
            self.said = OK
        except grpc.RpcError as error:
            if code_of(error) is UNAVAILABLE:
                raise
            self.said = code_of(error)

    def confirm(self, client: Client, *, lost: bool) -> None:
        assert self.said is (self.done_before if lost else OK)


class CreateTopic(Naming):
    commits = "INSERT INTO topic "
    done_before = grpc.StatusCode.ALREADY_EXISTS

    def arrange(self, client: Client) -> None:
        self.name = unique("made")

    def act(self, client: Client) -> None:
        self.note(lambda name: client.create_topic(name, 3))

    def survey(self, client: Client, *, worked: bool) -> None:
        assert client.topics().get(self.name) == (3 if worked else None)

    def confirm(self, client: Client, *, lost: bool) -> None:
        super().confirm(client, lost=lost)
        assert client.topics()[self.name] == 3
        transaction_id = new_id()
        client.prepare(self.producers, transaction_id, [message(self.name, "one")])
        client.commit(transaction_id)
        assert [each.message.body for each in client.drain(self.group, self.name)] == [b"one"]
        assert len(client.offsets(self.name)) == 3


class DeleteTopic(Naming):
    commits = "UPDATE topic SET deleted_at"
    done_before = grpc.StatusCode.NOT_FOUND

    def arrange(self, client: Client) -> None:
        self.name = client.make_topic()
        client.send(message(self.name, "kept"))
        assert len(client.drain(self.group, self.name)) == 1

    def act(self, client: Client) -> None:
        self.note(client.delete_topic)

    def survey(self, client: Client, *, worked: bool) -> None:
        assert (self.name in client.topics()) != worked
        if not worked:
            assert [each.body for entries in client.log(self.name).values() for each in entries] == [b"kept"]
            assert client.drain(self.group, self.name) == []

    def confirm(self, client: Client, *, lost: bool) -> None:
        super().confirm(client, lost=lost)
        assert self.name not in client.topics()
        assert client.progress(self.group) == []


class CreateGroup(Naming):
    commits = "INSERT INTO consumer_group "
    done_before = grpc.StatusCode.ALREADY_EXISTS

    def arrange(self, client: Client) -> None:
        self.name = unique("made")
        client.send(message(self.topic, self.next_body()))
        self.expected.append(self.body)

    def act(self, client: Client) -> None:
        self.note(client.create_group)

    def survey(self, client: Client, *, worked: bool) -> None:
        assert (self.name in client.groups()) == worked
        assert (f"%DLQ%{self.name}" in client.topics()) == worked

    def confirm(self, client: Client, *, lost: bool) -> None:
        super().confirm(client, lost=lost)
        assert client.topics()[f"%DLQ%{self.name}"] == 1
        delivered = [each.message.body.decode() for each in client.drain(self.name, self.topic)]
        assert sorted(delivered) == sorted(self.expected)


class DeleteGroup(Naming):
    commits = "DELETE FROM consumer_group "
    done_before = grpc.StatusCode.NOT_FOUND

    def arrange(self, client: Client) -> None:
        self.name = client.make_group()
        client.send(message(self.topic, self.next_body()))
        self.expected.append(self.body)
        assert len(client.pull(self.name, self.topic)) == len(self.expected)

    def act(self, client: Client) -> None:
        self.note(client.delete_group)

    def survey(self, client: Client, *, worked: bool) -> None:
        assert (self.name in client.groups()) != worked
        if not worked:
            assert sum(each.in_flight for each in client.progress(self.name)) == len(self.expected)

    def confirm(self, client: Client, *, lost: bool) -> None:
        super().confirm(client, lost=lost)
        assert self.name not in client.groups()
        assert f"%DLQ%{self.name}" in client.topics()


class Join(Operation):
    """The first pull of a group: it joins the topic's queues before it is handed anything."""

    commits = "INSERT INTO group_progress"

    def arrange(self, client: Client) -> None:
        self.group = client.make_group()
        client.send(message(self.topic, self.next_body()))
        self.expected.append(self.body)

    def act(self, client: Client) -> None:
        self.deliveries = client.pull(self.group, self.topic, wait=20, lease=600)

    def survey(self, client: Client, *, worked: bool) -> None:
        joined = [(each.next_offset, each.in_flight) for each in client.progress(self.group)]
        assert joined == ([(0, 0), (0, 0)] if worked else [])

    def confirm(self, client: Client, *, lost: bool) -> None:
        assert sorted(each.message.body.decode() for each in self.deliveries) == sorted(self.expected)
        assert {each.attempt for each in self.deliveries} == {1}
        assert len(client.progress(self.group)) == 2


class NewProducerGroup(Prepare):
    """A producer group is made when it is first named; the half messages come after it."""

    commits = "INSERT INTO producer_group "

    def arrange(self, client: Client) -> None:
        super().arrange(client)
        self.producers = unique("producers")

    def survey(self, client: Client, *, worked: bool) -> None:
        assert client.undecided(self.producers) == set()

    def confirm(self, client: Client, *, lost: bool) -> None:
        found = client.transaction(self.transaction_id)
        assert found.producer_group == self.producers
        assert client.undecided(self.producers) == {self.transaction_id}
        client.commit(self.transaction_id)
        self.expected += self.bodies()


NAME_OPERATIONS: tuple[type[Operation], ...] = (
    CreateTopic,
    DeleteTopic,
    CreateGroup,
    DeleteGroup,
    Join,
    NewProducerGroup,
)
