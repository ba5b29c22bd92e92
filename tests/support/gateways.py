"""Brokers that RocketMQ's clients can use, and what halfmq's own clients see of them."""

from __future__ import annotations

import socket
import time
import uuid
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from consumer_sdk import Admin, Consumer, QueueReader
from support.brokers import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import TracebackType

    from consumer_sdk import ReceivedMessage, StoredMessage, TlsConfig

PATIENCE = 30.0

# Check after check can be waited for, and does not park what a slow test is about.
QUICK = {"rocketmq_min_invisible": 0.1, "first_check": 0.3, "check_interval": 0.3, "max_checks": 1000}


def unique(name: str) -> str:
    """A name that nobody else has."""
    return f"{name}-{uuid.uuid4().hex[:10]}"


class Gateway:
    """A broker with RocketMQ's protocol, and halfmq's own clients of it; a context manager that ends it."""

    def __init__(
        self,
        database: str,
        variables: Mapping[str, str] | None = None,
        /,
        tls: TlsConfig | None = None,
        **settings: Any,
    ) -> None:
        """Starts the broker.

        Args:
            database: URL of the database.
            variables: HALFMQ_ variables of its environment.
            tls: how halfmq's own clients reach it.
            settings: further options of `halfmq serve`.
        """
        self._settings = {"rocketmq": True, "auto_create_groups": False, **QUICK, **settings}
        self._variables = variables
        self.broker = BrokerProcess(database, variables, **self._settings)
        self._tls = tls
        self._clients = ExitStack()
        self.admin = self._clients.enter_context(Admin(self.endpoint, tls=tls))
        self._reader = self._clients.enter_context(QueueReader(self.endpoint, tls=tls))

    @property
    def endpoint(self) -> str:
        """Where it listens."""
        return self.broker.endpoint

    def stop(self, *, kill: bool) -> None:
        """Ends the broker, by SIGKILL or as it is ended to be replaced; `start` starts it again."""
        if kill:
            self.broker.kill()
        self.broker.close()
        assert self.broker.count("[error") == 0, self.broker.log

    def start(self) -> None:
        """Starts a broker on the same database, at the same place."""
        settings = {**self._settings, "listen": self.endpoint}
        self.broker = BrokerProcess(self.broker.database, self._variables, **settings)

    def topic(self, prefix: str = "orders", **settings: Any) -> str:
        """A new topic; settings as of Admin.create_topic."""
        return self.admin.create_topic(unique(prefix), **settings).name

    def group(self, prefix: str = "shipping", **settings: Any) -> str:
        """A new consumer group; settings as of Admin.create_group."""
        return self.admin.create_group(unique(prefix), **settings).name

    def consumer(self, group: str, *topics: str, **options: Any) -> Consumer:
        """A consumer of halfmq's own."""
        return Consumer(self.endpoint, group, topics, tls=self._tls, **options)

    def take(self, group: str, topic: str, count: int) -> list[ReceivedMessage]:
        """So many messages, received and acked by halfmq's own consumer."""
        deadline = time.monotonic() + PATIENCE
        taken: list[ReceivedMessage] = []
        with self.consumer(group, topic) as consumer:
            while len(taken) < count:
                left = deadline - time.monotonic()
                assert left > 0, f"only {taken} of {count} messages came"
                some = consumer.receive(count - len(taken), timeout=left)
                consumer.ack(some)
                taken += some
        return taken

    def log(self, topic: str) -> list[StoredMessage]:
        """All messages of a topic, queue by queue."""
        found: list[StoredMessage] = []
        for queue in self._reader.queue_offsets(topic):
            offset = queue.min_offset
            while offset < queue.max_offset:
                piece = self._reader.read_queue(topic, queue.queue, offset, 1000)
                found += piece.messages
                offset = piece.next_offset
        return found

    def bodies(self, topic: str) -> list[str]:
        """The bodies of all messages of a topic, sorted."""
        return sorted(message.text for message in self.log(topic))

    def lag(self, group: str, topic: str) -> int:
        """How many messages of a topic a group has not settled."""
        return sum(queue.lag for queue in self._reader.queue_offsets(topic, group))

    def until_settled(self, group: str, *topics: str) -> None:
        """Waits until a group has settled all messages of these topics."""
        for topic in topics:
            eventually(partial(self.lag, group, topic), lambda lag: lag == 0)

    def dead_letters(self, group: str) -> list[str]:
        """The bodies of a group's dead letters, sorted."""
        return sorted(letter.message.text for letter in self.admin.list_dead_letters(group))

    def close(self) -> None:
        """Ends the broker; it must not have met an error it did not expect."""
        self._clients.close()
        self.broker.close()
        assert self.broker.count("[error") == 0, self.broker.log

    def __enter__(self) -> Self:
        """Is running already."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends it."""
        self.close()


def eventually(look: Callable[[], Any], wanted: Callable[[Any], bool] = bool, seconds: float = PATIENCE) -> Any:
    """Looks again and again until what is seen is as wanted; nothing tells when that is."""
    deadline = time.monotonic() + seconds
    while not wanted(found := look()):
        assert time.monotonic() < deadline, f"still {found}"
        time.sleep(0.05)
    return found


def free_address() -> str:
    """Where a broker can listen that must be known before it is started."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


def texts(messages: Iterable[Any]) -> list[str]:
    """The bodies of messages, in their order."""
    return [message.text for message in messages]
