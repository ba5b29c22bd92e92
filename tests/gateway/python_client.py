"""The official RocketMQ client, told by lines of JSON what to do: the process that support/rocketmq.py drives.

It reads commands from standard input and does each on a thread of its own, because many of them wait. It answers on
standard output, and asks there what a listener or a checker is to say, for tests decide that.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import os
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)
from rocketmq.grpc_protocol import Code, FilterType

IN_FLIGHT = 256
THREADS = 64

numbers = itertools.count(1)
clients: dict[int, Any] = {}
kept: dict[int, Any] = {}
asked: dict[int, Future[str]] = {}
writing = threading.Lock()


def write(line: dict[str, Any]) -> None:
    text = json.dumps(line)
    with writing:
        print(text, flush=True)


def keep(thing: Any) -> int:
    number = next(numbers)
    kept[number] = thing
    return number


def ask(client: int, message: Message, **more: Any) -> str:
    """Has the test say what to do with a message."""
    number = next(numbers)
    asked[number] = answer = Future()
    write({"ask": number, "client": client, "message": shown(message), **more})
    return answer.result()


class Listener(MessageListener):
    """Asks the test about every message."""

    def __init__(self, client: int) -> None:
        self._client = client

    def consume(self, message: Message) -> ConsumeResult:
        verdict = ask(self._client, message)
        if verdict == "RAISE":
            raise RuntimeError("the listener of the test raises")
        return ConsumeResult[verdict]


class Checker(TransactionChecker):
    """Asks the test about every transaction."""

    def __init__(self, client: int) -> None:
        self._client = client
        self.transaction_ids: dict[str, str] = {}

    def check(self, message: Message) -> TransactionResolution:
        verdict = ask(self._client, message, transaction_id=self.transaction_ids.get(message.message_id, ""))
        if verdict == "RAISE":
            raise RuntimeError("the checker of the test raises")
        name = {"UNKNOWN": "TRANSACTION_RESOLUTION_UNSPECIFIED"}.get(verdict, verdict)
        return TransactionResolution.Value(name)


class WatchedProducer(Producer):
    """The client's producer; notes which transaction a check is for, which it does not tell its checker."""

    def __init__(self, *arguments: Any, checker: Checker | None, **more: Any) -> None:
        super().__init__(*arguments, checker=checker, **more)
        self._noting = checker

    def on_recover_orphaned_transaction_command(self, endpoints: Any, msg: Any, transaction_id: str) -> None:
        if self._noting is not None:
            self._noting.transaction_ids[msg.system_properties.message_id] = transaction_id
        super().on_recover_orphaned_transaction_command(endpoints, msg, transaction_id)


def shown(message: Message) -> dict[str, Any]:
    return {
        "topic": message.topic,
        "body": base64.b64encode(message.body).decode(),
        "tag": message.tag,
        "keys": sorted(message.keys),
        "properties": dict(message.properties),
        "message_group": message.message_group,
        "message_id": message.message_id,
        "message_type": Message.message_type_desc(message.message_type),
        "born_host": message.born_host,
        "born_at": message.born_timestamp,
        "deliver_at": message.delivery_timestamp,
        "sent_out_at": message.transport_delivery_timestamp,
        "attempt": message.delivery_attempt,
        "priority": message.priority,
        "corrupted": message.corrupted,
        "receipt_handle": message.receipt_handle,
        "broker": "" if message.endpoints is None else str(message.endpoints),
    }


def configuration(
    endpoints: str, access_key: str = "", secret_key: str = "", namespace: str = "", request_timeout: int = 10
) -> ClientConfiguration:
    return ClientConfiguration(endpoints, Credentials(access_key, secret_key), namespace, request_timeout)


def filters(subscription: dict[str, list[str]]) -> dict[str, FilterExpression]:
    kinds = {"tag": FilterType.TAG, "sql": FilterType.SQL}
    return {topic: FilterExpression(text, kinds[kind]) for topic, (kind, text) in subscription.items()}


def message_of(given: dict[str, Any]) -> Message:
    message = Message()
    message.topic = given["topic"]
    message.body = base64.b64decode(given["body"])
    for key in given.get("keys", ()):
        message.keys = key  # Each adds one.
    for name, value in given.get("properties", {}).items():
        message.add_property(name, value)
    if "deliver_at" in given:
        message.delivery_timestamp = given["deliver_at"]
    for name in ("tag", "message_group", "priority"):
        if name in given:
            setattr(message, name, given[name])
    return message


def receipt(of: Any) -> dict[str, Any]:
    return {
        "message_id": of.message_id,
        "transaction_id": of.transaction_id,
        "offset": of.offset,
        "recall_handle": of.recall_handle or "",
        "broker": str(of.message_queue.endpoints),
    }


# The commands.


def producer(client: int, config: dict[str, Any], topics: list[str], checked: bool, tls: bool) -> str:
    checker = Checker(client) if checked else None
    return start(client, WatchedProducer(configuration(**config), topics, checker=checker, tls_enable=tls))


def push_consumer(
    client: int, config: dict[str, Any], group: str, subscription: dict[str, list[str]], threads: int, tls: bool
) -> str:
    made = PushConsumer(
        configuration(**config),
        group,
        Listener(client),
        filters(subscription),
        consumption_thread_count=threads,
        tls_enable=tls,
    )
    return start(client, made)


def simple_consumer(
    client: int, config: dict[str, Any], group: str, subscription: dict[str, list[str]], wait: int, tls: bool
) -> str:
    return start(client, SimpleConsumer(configuration(**config), group, filters(subscription), wait, tls_enable=tls))


def start(client: int, made: Any) -> str:
    clients[client] = made
    made.startup()
    return str(made.client_id)


def shutdown(client: int) -> None:
    clients.pop(client).shutdown()


def send(client: int, message: dict[str, Any]) -> dict[str, Any]:
    return receipt(clients[client].send(message_of(message)))


def send_many(client: int, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    room = threading.Semaphore(IN_FLIGHT)
    sent = []
    for given in messages:
        room.acquire()
        future = clients[client].send_async(message_of(given))
        future.add_done_callback(lambda _: room.release())
        sent.append(future)
    return [receipt(future.result()) for future in sent]


def recall(client: int, topic: str, handle: str, in_background: bool) -> str:
    if in_background:
        return str(clients[client].recall_message_async(topic, handle).result())
    return str(clients[client].recall_message(topic, handle))


def send_in_transaction(client: int, message: dict[str, Any]) -> dict[str, Any]:
    transaction = clients[client].begin_transaction()
    sent = clients[client].send(message_of(message), transaction)
    return {"transaction": keep(transaction), "receipt": receipt(sent)}


def end_transaction(transaction: int, commit: bool) -> None:
    (kept[transaction].commit if commit else kept[transaction].rollback)()


def receive(client: int, limit: int, invisible: int) -> list[dict[str, Any]]:
    return [{**shown(each), "number": keep(each)} for each in clients[client].receive(limit, invisible)]


def ack(client: int, message: int, handle: str) -> None:
    kept[message].receipt_handle = handle
    clients[client].ack(kept[message])


def change_invisible_duration(client: int, message: int, handle: str, seconds: int) -> str:
    kept[message].receipt_handle = handle
    clients[client].change_invisible_duration(kept[message], seconds)
    return str(kept[message].receipt_handle)


def subscribe(client: int, topic: str, expression: list[str]) -> None:
    clients[client].subscribe(topic, filters({topic: expression})[topic])


COMMANDS = {
    each.__name__: each
    for each in (
        producer,
        push_consumer,
        simple_consumer,
        shutdown,
        send,
        send_many,
        recall,
        send_in_transaction,
        end_transaction,
        receive,
        ack,
        change_invisible_duration,
        subscribe,
    )
}


def told(error: Exception) -> dict[str, str]:
    code = getattr(error, "code", "")
    if callable(code):  # Of an error of gRPC.
        code = code().name
    return {
        "kind": type(error).__name__,
        "code": Code.Name(code) if isinstance(code, int) else code or "",
        "text": str(error),
    }


def run(call: int, command: str, arguments: dict[str, Any]) -> None:
    try:
        write({"call": call, "result": COMMANDS[command](**arguments)})
    except Exception as error:
        write({"call": call, "error": told(error)})


def with_event_loop() -> None:
    """Gives a thread what a main thread has.

    The client opens its stream in the caller's thread where the answer about routes comes too soon to be waited for,
    and gRPC asks that thread for its event loop. Without one the client waits for its settings in vain.
    """
    asyncio.set_event_loop(asyncio.new_event_loop())


def main() -> None:
    with ThreadPoolExecutor(THREADS, initializer=with_event_loop) as pool:
        for line in sys.stdin:
            given = json.loads(line)
            if "answer" in given:
                asked.pop(given["answer"]).set_result(given["verdict"])
            else:
                pool.submit(run, given["call"], given["command"], given["arguments"])
        os._exit(0)  # Without a good-bye: some threads wait for answers, and nobody is there to give them.


main()
