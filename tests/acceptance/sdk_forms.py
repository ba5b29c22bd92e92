"""Both forms of the SDKs under the same words: tests await either, and a synchronous client then works in a thread."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

import pytest

from acceptance.client import PATIENCE
from consumer_sdk import AsyncConsumer, Consumer
from halfmq.v1 import consumer_pb2
from producer_sdk import (
    Admin,
    AsyncAdmin,
    AsyncProducer,
    AsyncTransactionListener,
    AsyncTransactionProducer,
    HalfMessages,
    LocalTransactionState,
    Message,
    Producer,
    TransactionListener,
    TransactionProducer,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from acceptance.client import Client
    from client_core.connection import Endpoint
    from consumer_sdk import AsyncReceivedMessage

Form: TypeAlias = Literal["sync", "asyncio"]

# Longer than any test: what comes again did not wait for the end of a lease.
LONG_LEASE = 3600.0

both_forms = pytest.mark.parametrize("form", ["sync", "asyncio"])


class InThreads:
    """A synchronous client, to be used as the asynchronous one is: calls and blocks run in threads."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._client, name)
        if name == "transaction":
            return lambda: InThreads(value())
        if not callable(value) or name == "stop":
            return value

        async def call(*arguments: Any, **options: Any) -> Any:
            return await asyncio.to_thread(value, *arguments, **options)

        return call

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self._client.__enter__)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self._client.__exit__, kind, error, trace)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        message = await asyncio.to_thread(next, self._client, None)
        if message is None:
            raise StopAsyncIteration
        return message


class Shop(TransactionListener):
    """Says of local transactions what it is told to: `arg` when they run, `answers` at the checks, the last for ever.

    An exception among them is raised.
    """

    def __init__(self, *answers: LocalTransactionState | Exception) -> None:
        self.answers = answers
        self.executed: list[HalfMessages] = []
        self.checked: list[HalfMessages] = []

    def execute_local_transaction(self, messages: HalfMessages, arg: Any) -> LocalTransactionState:
        self.executed.append(messages)
        return _say(arg)

    def check_local_transaction(self, messages: HalfMessages) -> LocalTransactionState:
        self.checked.append(messages)
        return _say(self.answers[min(messages.check_number, len(self.answers)) - 1])


class AsyncShop(AsyncTransactionListener):
    """The same for asyncio."""

    def __init__(self, shop: Shop) -> None:
        self._shop = shop

    async def execute_local_transaction(self, messages: HalfMessages, arg: Any) -> LocalTransactionState:
        return self._shop.execute_local_transaction(messages, arg)

    async def check_local_transaction(self, messages: HalfMessages) -> LocalTransactionState:
        return self._shop.check_local_transaction(messages)


def _say(answer: LocalTransactionState | Exception) -> LocalTransactionState:
    if isinstance(answer, Exception):
        raise answer
    return answer


def producer(form: Form, endpoint: Endpoint, **options: Any) -> AsyncProducer:
    if form == "sync":
        return InThreads(Producer(endpoint, **options))  # type: ignore[return-value]
    return AsyncProducer(endpoint, **options)


def transaction_producer(
    form: Form, endpoint: Endpoint, group: str, shop: Shop | None = None, **options: Any
) -> AsyncTransactionProducer:
    if form == "sync":
        return InThreads(TransactionProducer(endpoint, group, shop, **options))  # type: ignore[return-value]
    return AsyncTransactionProducer(endpoint, group, AsyncShop(shop) if shop else None, **options)


def consumer(form: Form, endpoint: Endpoint, group: str, topics: str | Iterable[str], **options: Any) -> AsyncConsumer:
    """Settle its messages with `await consumer.ack(...)`; their own methods are those of their form."""
    if form == "sync":
        return InThreads(Consumer(endpoint, group, topics, **options))  # type: ignore[return-value]
    return AsyncConsumer(endpoint, group, topics, **options)


def admin(form: Form, endpoint: Endpoint) -> AsyncAdmin:
    """Turn what it iterates over into lists with `everything()`."""
    if form == "sync":
        return InThreads(Admin(endpoint))  # type: ignore[return-value]
    return AsyncAdmin(endpoint)


async def everything(found: Any) -> list[Any]:
    """All that an admin of either form iterates over."""
    if inspect.isawaitable(found):
        return await asyncio.to_thread(list, await found)
    return [each async for each in found]


async def fill(endpoint: Endpoint, topic: str, bodies: Iterable[str]) -> None:
    """Sends ordinary messages."""
    async with AsyncProducer(endpoint) as sender:
        await sender.send_many(Message(topic, body) for body in bodies)


async def take(reader: AsyncConsumer, count: int) -> list[AsyncReceivedMessage]:
    """Receives so many messages, in as many pieces as they come in."""
    taken: list[AsyncReceivedMessage] = []
    while len(taken) < count:
        piece = await reader.receive(count - len(taken), timeout=PATIENCE)
        assert piece, f"{len(taken)} of {count} messages came: {texts(taken)}"
        taken += piece
    return taken


async def lag(client: Client, topic: str, group: str) -> int:
    """Messages of a topic that a group has not handled."""
    request = consumer_pb2.QueueOffsetsRequest(topic=topic, consumer_group=group)
    return sum(queue.lag for queue in (await client.call(client.consumer.QueueOffsets, request)).queues)


def texts(messages: Iterable[AsyncReceivedMessage]) -> list[str]:
    return [message.text for message in messages]
