"""Pieces of work that one broker does at a time, and when they are done, by the database's clock."""

from __future__ import annotations

import threading
import uuid
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import grpc

from faults.client import COMMITTED, Client, message, new_id, unique
from halfmq.v1 import transaction_pb2
from support.databases import connect

if TYPE_CHECKING:
    from collections.abc import Sequence

    from faults.client import Checks


class Server:
    """A session on the database, for any thread."""

    def __init__(self, database: str) -> None:
        self._connection = connect(database, autocommit=True)
        self._lock = threading.Lock()

    def now(self) -> float:
        """The server's clock, in seconds."""
        return float(self.ask("SELECT UNIX_TIMESTAMP(NOW(6))")[0][0])

    def turns(self) -> dict[str, tuple[str, float]]:
        """Who has the turn of each task, and until when."""
        rows = self.ask("SELECT task, broker_id, until FROM maintenance_turn")
        return {task: (broker_id, until / 1e6) for task, broker_id, until in rows}

    def ask(self, sql: str, *values: object) -> Sequence[Sequence[Any]]:
        with self._lock, self._connection.cursor() as cursor:
            cursor.execute(sql, values)
            found: Sequence[Sequence[Any]] = cursor.fetchall()
            return found

    def close(self) -> None:
        self._connection.close()


class Work(ABC):
    """Work that the holder can be stopped at.

    Attributes:
        commits: found in the statements of the database transaction that does it.
        held_at: when the COMMIT of it was held back, by the server's clock.
    """

    name: str
    commits: str

    def __init__(self, server: Server) -> None:
        self.server = server
        self.held = threading.Event()
        self.held_at = 0.0
        self._release = threading.Event()

    def hold(self) -> None:
        """Called at the COMMIT, by the proxy: it does not reach the server."""
        self.held_at = self.server.now()
        self.held.set()
        self._release.wait()

    def release(self) -> None:
        """Ends the connection of the COMMIT."""
        self._release.set()

    def close(self) -> None:
        """This is the end of it."""
        self.release()

    def held_or_done(self) -> bool:
        """Whether the holder is stopped at it, or somebody has done it."""
        return self.held.is_set() or self.done()

    @abstractmethod
    def give(self) -> None:
        """A further piece of it."""

    @abstractmethod
    def done(self) -> bool:
        """Whether all pieces have had their effect."""


class DelayedMessages(Work):
    """A message is due."""

    name = "delayed messages"
    commits = "scheduled_message AS t|DELETE t FROM .* scheduled_message"

    def __init__(self, server: Server, first: Client, second: Client) -> None:
        super().__init__(server)
        self._first, self._second = first, second
        self._topic = first.make_topic(1)
        self._given = 0

    def give(self) -> None:
        due = message(self._topic, "due")
        due.delay.FromMilliseconds(100)
        self._first.send(due)
        self._given += 1

    def done(self) -> bool:
        (queue,) = self._second.offsets(self._topic)
        return queue.max_offset == self._given


class Submissions(Work):
    """An application has inserted a message."""

    name = "submissions"
    commits = "JOIN submission"

    def __init__(self, server: Server, first: Client, second: Client) -> None:
        super().__init__(server)
        self._second = second
        self._topic = first.make_topic(1)
        self._given = 0

    def give(self) -> None:
        self.server.ask(
            "INSERT INTO submission (message_id, topic_name, body) VALUES (%s, %s, 'a body')",
            uuid.uuid4().bytes,
            self._topic,
        )
        self._given += 1

    def done(self) -> bool:
        (queue,) = self._second.offsets(self._topic)
        return queue.max_offset == self._given


class TransactionChecks(Work):
    """A transaction waits for its check; a producer answers at both brokers."""

    name = "checks"
    commits = "INSERT INTO transaction_check"

    def __init__(self, server: Server, first: Client, second: Client) -> None:
        super().__init__(server)
        self._first, self._second = first, second
        self._topic, self._group = first.make_topic(1), unique("asked")
        self._given: list[str] = []
        self._streams = [client.checks(self._group, 120) for client in (first, second)]
        self._threads = [threading.Thread(target=self._answer, args=(stream,), daemon=True) for stream in self._streams]
        for thread in self._threads:
            thread.start()

    def _answer(self, stream: Checks) -> None:
        try:
            for response in stream:
                if response.HasField("check"):
                    stream.answer(response.check, transaction_pb2.CHECK_VERDICT_COMMIT)
        except grpc.RpcError:
            return  # Its broker is gone, or this is the end.

    def give(self) -> None:
        self._given.append(new_id())
        self._first.prepare(self._group, self._given[-1], [message(self._topic, "half")])

    def done(self) -> bool:
        return all(self._second.transaction(each).state == COMMITTED for each in self._given)

    def close(self) -> None:
        super().close()
        for stream in self._streams:
            stream.cancel()
