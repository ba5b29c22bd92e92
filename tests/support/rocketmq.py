"""The official RocketMQ client for Python, in processes of its own, and what it tells of messages.

It is never imported here: it writes its log into the user's home, and starts threads that live as long as the process.
"""

from __future__ import annotations

import base64
import importlib.util
import itertools
import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

import pytest

from support.databases import in_ci

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from types import TracebackType

    from producer_sdk import Admin

DEADLINE = 60.0
END_SECONDS = 10.0

_SCRIPT = Path(__file__).parents[1] / "gateway" / "python_client.py"

Verdict: TypeAlias = Literal["COMMIT", "ROLLBACK", "UNKNOWN", "RAISE"]
"""What a checker says; RAISE: it raises an exception in place of that."""


class ClientError(Exception):
    """What the official client raised.

    Attributes:
        kind: the name of its class.
        code: the name of RocketMQ's code, where it has one.
    """

    def __init__(self, kind: str, code: str, text: str) -> None:
        """Takes what the process told of it."""
        super().__init__(f"{kind}: {text}")
        self.kind = kind
        self.code = code
        self.text = text


@dataclass(frozen=True)
class Received:
    """A message as the official client knows it; times in milliseconds, as it tells them.

    Attributes:
        broker: the address of the one that handed it out.
        seen_at: when the test heard of it, in seconds.
        number: names it in its process, where it was received by a simple consumer.
        transaction_id: of a message that is checked.
    """

    topic: str
    body: bytes
    tag: str | None
    keys: frozenset[str]
    properties: Mapping[str, str]
    message_group: str | None
    message_id: str
    message_type: str
    born_host: str
    born_at: int
    deliver_at: int
    sent_out_at: int | None
    attempt: int | None
    priority: int
    corrupted: bool
    receipt_handle: str | None
    broker: str
    seen_at: float = field(default_factory=time.time)
    number: int = 0
    transaction_id: str = ""

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode()

    @classmethod
    def of(cls, told: dict[str, Any], **more: Any) -> Received:
        """Reads what the process told."""
        return cls(**{**told, "body": base64.b64decode(told["body"]), "keys": frozenset(told["keys"]), **more})


@dataclass(frozen=True)
class SendReceipt:
    """What a producer got for a message; `broker` is the address of the one that took it."""

    message_id: str
    transaction_id: str
    offset: int
    recall_handle: str
    broker: str


class OfficialClient:
    """A process with any number of producers and consumers in it; a context manager that ends it."""

    def __init__(self, home: Path, variables: Mapping[str, str] | None = None) -> None:
        """Starts it.

        Args:
            home: folder that takes its log.
            variables: further variables of its environment.
        """
        _need_client()
        environment = {**os.environ, "HOME": str(home), **(variables or {})}
        self.process = subprocess.Popen(
            [sys.executable, str(_SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env=environment,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._commands, self._answers = self.process.stdin, self.process.stdout
        self._numbers = itertools.count(1)
        self._writing = threading.Lock()
        self._waiting: dict[int, Future[Any]] = {}
        self._members: dict[int, _Member] = {}
        # Listeners of tests may wait; there are as many as threads of the client.
        self._listening = ThreadPoolExecutor(64, thread_name_prefix="listener")
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def producer(
        self,
        endpoints: str,
        *topics: str,
        checker: Callable[[Received], Verdict] | None = None,
        tls: bool = False,
        **config: Any,
    ) -> OfficialProducer:
        """Starts a producer; `checker` says what became of transactions."""
        member = OfficialProducer(self, next(self._numbers), checker)
        member._start("producer", _config(endpoints, config), topics=topics, checked=checker is not None, tls=tls)
        return member

    def push_consumer(
        self,
        endpoints: str,
        group: str,
        topics: str | Mapping[str, str],
        listener: Callable[[Received], bool] | None = None,
        *,
        threads: int = 20,
        tls: bool = False,
        **config: Any,
    ) -> OfficialPushConsumer:
        """Starts a push consumer; `listener` says whether a message was handled: without it, each was."""
        member = OfficialPushConsumer(self, next(self._numbers), listener)
        wanted = _subscription(topics)
        member._start(
            "push_consumer", _config(endpoints, config), group=group, subscription=wanted, threads=threads, tls=tls
        )
        return member

    def simple_consumer(
        self,
        endpoints: str,
        group: str,
        topics: str | Mapping[str, str],
        *,
        wait: int = 5,
        tls: bool = False,
        **config: Any,
    ) -> OfficialSimpleConsumer:
        """Starts a simple consumer, whose `receive` waits up to `wait` seconds."""
        member = OfficialSimpleConsumer(self, next(self._numbers))
        wanted = _subscription(topics)
        member._start(
            "simple_consumer", _config(endpoints, config), group=group, subscription=wanted, wait=wait, tls=tls
        )
        return member

    def shutdown_all(self) -> None:
        """Shuts down all producers and consumers that still are there, at the same time."""
        for answer in [member._shutdown() for member in list(self._members.values())]:
            answer.result(DEADLINE)

    def kill(self) -> None:
        """SIGKILL: as a crash would end it, without a good-bye to anybody."""
        self.process.kill()
        self._end()

    def close(self) -> None:
        """Ends it, without a good-bye either; `shutdown` and `shutdown_all` say it."""
        if self.process.poll() is None:
            self._commands.close()
        self._end()

    def _end(self) -> None:
        try:
            self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(END_SECONDS)
        self._reader.join(END_SECONDS)
        self._listening.shutdown(wait=False, cancel_futures=True)
        for pipe in (self._commands, self._answers):
            try:
                pipe.close()
            except BrokenPipeError:  # Something was still to be written.
                continue

    def __enter__(self) -> Self:
        """Is running already."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends it."""
        self.close()

    def _call(self, command: str, **arguments: Any) -> Any:
        return self._begin(command, **arguments).result(DEADLINE)

    def _begin(self, command: str, **arguments: Any) -> Future[Any]:
        call = next(self._numbers)
        self._waiting[call] = answer = Future[Any]()
        self._write({"call": call, "command": command, "arguments": arguments})
        return answer

    def _write(self, line: dict[str, Any]) -> None:
        with self._writing:
            self._commands.write(json.dumps(line) + "\n")
            self._commands.flush()

    def _read(self) -> None:
        for line in self._answers:
            told = json.loads(line)
            if "ask" in told:
                self._listening.submit(self._answer, told)
            elif "error" in told:
                self._waiting.pop(told["call"]).set_exception(ClientError(**told["error"]))
            else:
                self._waiting.pop(told["call"]).set_result(told["result"])
        for answer in self._waiting.values():
            answer.set_exception(ClientError("ProcessEnded", "", "the client's process has ended"))

    def _answer(self, told: dict[str, Any]) -> None:
        message = Received.of(told["message"], transaction_id=told.get("transaction_id", ""))
        member = self._members.get(told["client"])
        verdict = "RAISE" if member is None else member._verdict(message)
        try:
            self._write({"answer": told["ask"], "verdict": verdict})
        except (OSError, ValueError):  # It was killed in the meantime.
            return


class _Member:
    """A producer or a consumer."""

    def __init__(self, process: OfficialClient, number: int) -> None:
        self._process = process
        self._number = number
        self.client_id = ""
        process._members[number] = self

    def _start(self, command: str, config: dict[str, Any], **arguments: Any) -> None:
        try:
            self.client_id = self._call(command, config=config, **arguments)
        except ClientError:
            self._process._members.pop(self._number)
            raise

    def _call(self, command: str, **arguments: Any) -> Any:
        return self._process._call(command, client=self._number, **arguments)

    def shutdown(self) -> None:
        """Shuts it down in the orderly way."""
        self._shutdown().result(DEADLINE)

    def _shutdown(self) -> Future[Any]:
        # Its listener goes on until then: it may be at work.
        answer = self._process._begin("shutdown", client=self._number)
        answer.add_done_callback(lambda _: self._process._members.pop(self._number, None))
        return answer

    def _verdict(self, message: Received) -> str:
        raise AssertionError(f"nobody asks {type(self).__name__} about messages: {message}")


class OfficialProducer(_Member):
    """A producer."""

    def __init__(
        self, process: OfficialClient, number: int, checker: Callable[[Received], Verdict] | None = None
    ) -> None:
        """Made by OfficialClient.producer."""
        super().__init__(process, number)
        self._checker = checker
        self.checks = Seen()

    def send(self, topic: str, body: bytes | str, **fields: Any) -> SendReceipt:
        """Sends a message; fields: tag, keys, properties, message_group, deliver_at (seconds), priority."""
        return SendReceipt(**self._call("send", message=_message(topic, body, fields)))

    def send_many(self, topic: str, bodies: Iterable[bytes | str], **fields: Any) -> list[SendReceipt]:
        """Sends messages by send_async, many at a time."""
        messages = [_message(topic, body, fields) for body in bodies]
        return [SendReceipt(**each) for each in self._call("send_many", messages=messages)]

    def recall(self, topic: str, handle: str, *, in_background: bool = False) -> str:
        """Takes a delayed message back; its id. `in_background`: by recall_message_async."""
        return str(self._call("recall", topic=topic, handle=handle, in_background=in_background))

    def send_in_transaction(self, topic: str, body: bytes | str, **fields: Any) -> OfficialTransaction:
        """Begins a transaction and sends its half message."""
        made = self._call("send_in_transaction", message=_message(topic, body, fields))
        return OfficialTransaction(self._process, made["transaction"], SendReceipt(**made["receipt"]))

    def _verdict(self, message: Received) -> str:
        self.checks.add(message)
        if self._checker is None:
            return "RAISE"
        return self._checker(message)


class OfficialTransaction:
    """A transaction whose half message was sent."""

    def __init__(self, process: OfficialClient, number: int, receipt: SendReceipt) -> None:
        """Made by OfficialProducer.send_in_transaction."""
        self._process = process
        self._number = number
        self.receipt = receipt

    @property
    def transaction_id(self) -> str:
        """Its identity."""
        return self.receipt.transaction_id

    @property
    def message_id(self) -> str:
        """The identity of its message."""
        return self.receipt.message_id

    def commit(self) -> None:
        """Releases the message."""
        self._process._call("end_transaction", transaction=self._number, commit=True)

    def rollback(self) -> None:
        """Drops the message."""
        self._process._call("end_transaction", transaction=self._number, commit=False)


class OfficialPushConsumer(_Member):
    """A push consumer, and what it got."""

    def __init__(self, process: OfficialClient, number: int, listener: Callable[[Received], bool] | None) -> None:
        """Made by OfficialClient.push_consumer."""
        super().__init__(process, number)
        self._listener = listener
        self.received = Seen()

    def _verdict(self, message: Received) -> str:
        self.received.add(message)
        try:
            return "SUCCESS" if self._listener is None or self._listener(message) else "FAILURE"
        except Exception:
            return "RAISE"


class OfficialSimpleConsumer(_Member):
    """A simple consumer."""

    def receive(self, limit: int = 32, invisible: int = 30) -> list[Received]:
        """Up to `limit` messages, each for `invisible` seconds; none when none came in time."""
        return [Received.of(each) for each in self._call("receive", limit=limit, invisible=invisible)]

    def receive_all(self, count: int, invisible: int = 30) -> list[Received]:
        """Receives until there are `count` messages, and acks each."""
        found: list[Received] = []
        until = time.monotonic() + DEADLINE
        while len(found) < count:
            assert time.monotonic() < until, f"{len(found)} messages instead of {count}: {texts(found)}"
            for message in self.receive(min(32, count - len(found)), invisible):
                self.ack(message)
                found.append(message)
        return found

    def receive_rest(self, admin: Admin, group: str, topic: str) -> list[Received]:
        """Receives and acks until the group has handled all that its topic holds; what it filters out, too."""
        found: list[Received] = []
        until = time.monotonic() + DEADLINE
        while not _handled(admin, group, topic):
            assert time.monotonic() < until, f"still not handled, after {len(found)} messages"
            for message in self.receive():
                self.ack(message)
                found.append(message)
        return found

    def ack(self, message: Received, handle: str = "") -> None:
        """Marks a message as handled; by another handle than the one it came with, if one is given."""
        self._call("ack", message=message.number, handle=handle or message.receipt_handle)

    def change_invisible_duration(self, message: Received, seconds: int, handle: str = "") -> str:
        """Keeps a message for so long from now on; the handle that counts from then on."""
        handle = handle or message.receipt_handle or ""
        answer = self._call("change_invisible_duration", message=message.number, handle=handle, seconds=seconds)
        return str(answer)

    def subscribe(self, topic: str, expression: str = "*") -> None:
        """Reads another topic, too, or a topic by another filter."""
        self._call("subscribe", topic=topic, expression=_filter(expression))


class Seen:
    """Messages that a listener or a checker saw, in this order; another thread adds to them."""

    def __init__(self) -> None:
        """Starts empty."""
        self._messages: list[Received] = []
        self._changed = threading.Condition()

    def add(self, message: Received) -> None:
        """Adds one."""
        with self._changed:
            self._messages.append(message)
            self._changed.notify_all()

    def all(self) -> list[Received]:
        """Those so far."""
        with self._changed:
            return list(self._messages)

    def texts(self) -> list[str]:
        """The bodies of those so far."""
        return texts(self.all())

    def await_count(self, count: int) -> list[Received]:
        """Waits until there are at least so many."""
        return self.wait(lambda messages: len(messages) >= count)

    def await_text(self, text: str) -> Received:
        """Waits for a message with this body; the first one."""
        found = self.wait(lambda messages: any(each.text == text for each in messages))
        return next(each for each in found if each.text == text)

    def wait(self, holds: Callable[[list[Received]], bool]) -> list[Received]:
        """Waits until something holds of them."""
        with self._changed:
            if not self._changed.wait_for(lambda: holds(self._messages), DEADLINE):
                pytest.fail(f"after {DEADLINE:.0f} s there are {len(self._messages)}: {texts(self._messages)[:100]}")
            return list(self._messages)


def texts(messages: Sequence[Received]) -> list[str]:
    """The bodies as texts."""
    return [message.text for message in messages]


def _need_client() -> None:
    found = importlib.util.find_spec("rocketmq")
    if found is not None and found.origin is not None:  # Without an origin it is only a folder of this name.
        return
    message = "needs RocketMQ's official client: scripts/setup --dev installs it"
    if in_ci():
        pytest.fail(message, pytrace=False)
    pytest.skip(message)


def _config(endpoints: str, more: dict[str, Any]) -> dict[str, Any]:
    return {"endpoints": endpoints, **more}


def _message(topic: str, body: bytes | str, fields: dict[str, Any]) -> dict[str, Any]:
    content = body.encode() if isinstance(body, str) else body
    return {"topic": topic, "body": base64.b64encode(content).decode(), **fields}


def _subscription(topics: str | Mapping[str, str]) -> dict[str, list[str]]:
    wanted = {topics: "*"} if isinstance(topics, str) else topics
    return {topic: _filter(expression) for topic, expression in wanted.items()}


def _filter(expression: str) -> list[str]:
    """A filter by tags, or one of SQL, which is written as `sql: condition`."""
    kind, colon, condition = expression.partition("sql:")
    return ["sql", condition.strip()] if colon and not kind else ["tag", expression]


def await_handled(admin: Admin, group: str, topic: str) -> None:
    """Waits until a group has handled all that its topic holds, so that nothing more can come."""
    until = time.monotonic() + DEADLINE
    while not _handled(admin, group, topic):
        assert time.monotonic() < until, f"not handled yet: {admin.group_progress(group, topic)}"
        time.sleep(0.05)


def _handled(admin: Admin, group: str, topic: str) -> bool:
    progress = admin.group_progress(group, topic)
    return bool(progress) and not any(each.lag or each.in_flight for each in progress)
