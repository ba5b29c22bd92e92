"""RocketMQ's official client for Node, in processes of its own: installed if need be, and driven from tests."""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

import pytest

from support.databases import in_ci
from support.patience import HANG

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

PACKAGE, VERSION = "rocketmq-client-nodejs", "1.0.8"
PATIENCE = 30.0

Outcome: TypeAlias = Literal["success", "failure", "throw", "hold"]
Verdict: TypeAlias = Literal["commit", "rollback", "unknown", "nothing", "throw", "hold"]

_SCRIPT = Path(__file__).parents[1] / "gateway" / "node_client.cjs"


class Absent(Exception):
    """Node or the client cannot be had here."""


def install() -> Path:
    """The folder with the client's modules; puts them there where they are missing.

    Raises:
        Absent: there is no Node, or the package cannot be had.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "halfmq" / "node"
    wanted = cache / f"{PACKAGE}-{VERSION}"
    modules = wanted / "node_modules"
    if shutil.which("node") is None:
        raise Absent("there is no node")
    if modules.exists():
        return modules
    if shutil.which("npm") is None:
        raise Absent("there is no npm")
    cache.mkdir(parents=True, exist_ok=True)
    # Only what is whole gets its name: others may install it at the same time, or be stopped half way.
    with tempfile.TemporaryDirectory(dir=cache, prefix="new-", ignore_cleanup_errors=True) as folder:
        command = ["npm", "install", "--prefix", folder, "--no-save", "--no-package-lock", "--ignore-scripts"]
        command += ["--no-audit", "--no-fund", "--loglevel=error", f"{PACKAGE}@{VERSION}"]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=HANG, cwd=folder
        )
        if done.returncode != 0:
            raise Absent(f"npm could not install {PACKAGE} {VERSION}:\n{done.stdout}{done.stderr}")
        with suppress(OSError):  # it is there by now
            Path(folder).rename(wanted)
            Path(folder).mkdir()  # for whoever removes it
    if not modules.exists():
        raise Absent(f"npm installed nothing in {modules}")
    return modules


@lru_cache
def node_modules() -> Path:
    """As `install`; without the client the test is skipped, in CI it fails."""
    try:
        return install()
    except Absent as absent:
        if in_ci():
            pytest.fail(f"needs RocketMQ's client for Node: {absent}", pytrace=False)
        pytest.skip(f"needs RocketMQ's client for Node: {absent}")


@dataclass(frozen=True, slots=True)
class NodeMessage:
    """A message as the client shows it; times in seconds since 1970."""

    token: int
    message_id: str
    topic: str
    body: bytes
    corrupted: bool
    tag: str | None
    message_group: str | None
    keys: tuple[str, ...]
    properties: dict[str, str]
    born_host: str
    born_at: float | None
    deliver_at: float | None
    attempt: int | None
    offset: int | None
    priority: int | None
    receipt_handle: str

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Self:
        """Reads what the process tells."""
        return cls(
            token=told["token"],
            message_id=told["message_id"],
            topic=told["topic"],
            body=base64.b64decode(told["body"]),
            corrupted=told["corrupted"],
            tag=told.get("tag") or None,
            message_group=told.get("message_group") or None,
            keys=tuple(told["keys"]),
            properties=told["properties"],
            born_host=told["born_host"],
            born_at=_seconds(told.get("born_at")),
            deliver_at=_seconds(told.get("deliver_at")),
            attempt=told.get("attempt"),
            offset=told.get("offset"),
            priority=told.get("priority"),
            receipt_handle=told["receipt_handle"],
        )

    @property
    def text(self) -> str:
        """The content as text."""
        return self.body.decode()


@dataclass(frozen=True, slots=True)
class NodeReceipt:
    """What a producer has in hand when a message was sent."""

    message_id: str
    transaction_id: str
    recall_handle: str
    offset: int


@dataclass(frozen=True, slots=True)
class Happening:
    """Something that a client told of by itself.

    Attributes:
        event: "delivered" to a handler, "handled" by it, or "checked".
        at: when, by the clock of the process (seconds since 1970).
        message: what was delivered, or what the transaction is about.
        token: of the message that was handled.
        said: the outcome, or the verdict.
    """

    event: str
    at: float
    message: NodeMessage | None
    token: int
    said: str


class NodeError(Exception):
    """A call of the client failed; `name` and `code` are those of the error at the root."""

    def __init__(self, told: Mapping[str, Any]) -> None:
        """Takes what the process tells."""
        super().__init__(told["text"])
        self.name = str(told["name"])
        self.code = told["code"]


@dataclass
class _Call:
    done: threading.Event = field(default_factory=threading.Event)
    answer: dict[str, Any] | None = None


class Pending:
    """A call under way."""

    def __init__(self, process: NodeProcess, call: _Call, what: str) -> None:
        """Made by NodeProcess.begin."""
        self._process = process
        self._call = call
        self._what = what

    @property
    def ended(self) -> bool:
        """Whether the answer is there, or none will come."""
        return self._call.done.is_set()

    def result(self, seconds: float = 2 * PATIENCE) -> Any:
        """Waits for the answer.

        Raises:
            NodeError: the call failed.
        """
        if not self._call.done.wait(seconds):
            pytest.fail(f"Node's client did not answer within {seconds} s: {self._what}\n{self._process.log}")
        answer = self._call.answer
        if answer is None:
            pytest.fail(f"the process of Node's client ended during: {self._what}\n{self._process.log}")
        if "error" in answer:
            raise NodeError(answer["error"])
        return answer["result"]


class NodeProcess:
    """A process in which clients run; a context manager that ends it."""

    def __init__(self, endpoint: str, variables: Mapping[str, str] | None = None, /, **options: object) -> None:
        """Starts it.

        Args:
            endpoint: the broker of its clients.
            variables: of its environment, which has hardly any others.
            options: of all its clients, as the client names them: namespace="shop", sslEnabled=True.
        """
        modules = node_modules()
        # The client writes a log into the user's home.
        self._home = tempfile.TemporaryDirectory(prefix="halfmq-node-", ignore_cleanup_errors=True)
        self._process = subprocess.Popen(
            ["node", str(_SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # Nothing else: certificates and proxies of the machine are no part of a test.
            env={"PATH": os.environ["PATH"], "HOME": self._home.name, "NODE_PATH": str(modules), **(variables or {})},
        )
        self._options = {"endpoints": endpoint, "namespace": "", **options}
        self._numbers = itertools.count(1)
        self._calls: dict[int, _Call] = {}
        self._happenings: dict[str, list[Happening]] = {}
        self._errors: list[str] = []
        self._said = threading.Condition()
        self._ended = False
        self._readers = [threading.Thread(target=each, daemon=True) for each in (self._read, self._read_errors)]
        for reader in self._readers:
            reader.start()

    @property
    def log(self) -> str:
        """What it wrote on standard error: the client's warnings and errors."""
        with self._said:
            return "\n".join(self._errors)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line)
            with self._said:
                if "id" in told:
                    call = self._calls.pop(told["id"])
                    call.answer = told
                    call.done.set()
                else:
                    self._happenings.setdefault(told["client"], []).append(_happening(told))
                self._said.notify_all()
        with self._said:
            self._ended = True
            for call in self._calls.values():
                call.done.set()
            self._said.notify_all()

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            with self._said:
                self._errors.append(line.decode(errors="replace").rstrip("\n"))

    def begin(self, command: str, **arguments: object) -> Pending:
        """Gives a command, and does not wait for its answer."""
        call = _Call()
        with self._said:
            number = next(self._numbers)
            if self._ended:
                call.done.set()
            else:
                self._calls[number] = call
        line = json.dumps({"id": number, "command": command, **arguments})
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # its end is told by the answer that never comes
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        return Pending(self, call, line[:200])

    def happenings(self, client: str) -> list[Happening]:
        """What a client told of so far."""
        with self._said:
            return list(self._happenings.get(client, ()))

    def until(self, done: Callable[[], bool], seconds: float = PATIENCE, what: Callable[[], object] = str) -> None:
        """Waits until something is so; looks whenever a client told of something.

        Args:
            done: what is waited for; must not call the process.
            seconds: how long.
            what: what to show where it does not come.
        """
        deadline = time.monotonic() + seconds
        with self._said:
            while not done():
                left = deadline - time.monotonic()
                if left <= 0 or self._ended:
                    break
                self._said.wait(left)
            else:
                return
        pytest.fail(f"Node's clients did not come so far: {what()}\n{self.log}")

    def producer(
        self,
        *topics: str,
        verdicts: Mapping[str, Sequence[Verdict]] | None = None,
        usual: Verdict | None = None,
        **options: object,
    ) -> Producer:
        """Starts a producer of some topics; it has a checker if there are verdicts (by bodies) or a usual one."""
        return self.begin_producer(*topics, verdicts=verdicts, usual=usual, **options).started()

    def begin_producer(
        self,
        *topics: str,
        verdicts: Mapping[str, Sequence[Verdict]] | None = None,
        usual: Verdict | None = None,
        **options: object,
    ) -> Producer:
        """As `producer`, but does not wait until it is started."""
        checks = {"verdicts": dict(verdicts or {}), "usual": usual or "unknown"} if verdicts or usual else None
        own = {**self._options, "topics": topics, **options}
        return Producer(self, "producer", {"options": own, "checks": checks})

    def push_consumer(
        self,
        group: str,
        *topics: str,
        tag: str = "*",
        sql: str | None = None,
        outcomes: Mapping[str, Sequence[Outcome]] | None = None,
        usual: Outcome = "success",
        work: float = 0,
        **options: object,
    ) -> PushConsumer:
        """Starts a push consumer; what its handler says is set by bodies, and takes `work` seconds."""
        own = {**self._options, "consumerGroup": group, **options}
        handling = {"outcomes": dict(outcomes or {}), "usual": usual, "work": work * 1000}
        told = {"options": own, "subscriptions": _subscriptions(topics, tag, sql), "handling": handling}
        return PushConsumer(self, "push", told).started()

    def simple_consumer(
        self, group: str, *topics: str, tag: str = "*", sql: str | None = None, wait: float = 2, **options: object
    ) -> SimpleConsumer:
        """Starts a simple consumer, whose calls wait so many seconds for messages."""
        own = {**self._options, "consumerGroup": group, "awaitDuration": wait * 1000, **options}
        told = {"options": own, "subscriptions": _subscriptions(topics, tag, sql)}
        return SimpleConsumer(self, "simple", told).started()

    def kill(self) -> None:
        """SIGKILL."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(PATIENCE)

    def close(self) -> int:
        """Ends it, with whatever is under way; its exit status."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            status = self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()
            status = self._process.wait()
        for reader in self._readers:
            reader.join(PATIENCE)
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()
        self._home.cleanup()
        return status

    def __enter__(self) -> Self:
        """Is running already."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends it; it must not have ended before by an error that nobody caught."""
        status = self.close()
        if kind is None:
            assert status in {0, -signal.SIGKILL}, self.log


class NodeClient:
    """A client in a process of Node."""

    _numbers = itertools.count(1)

    def __init__(self, process: NodeProcess, command: str, told: Mapping[str, Any]) -> None:
        """Begins to start it."""
        self.process = process
        self.name = f"{command}-{next(self._numbers)}"
        self.client_id = ""
        self.starting = process.begin(command, name=self.name, **told)

    def started(self) -> Self:
        """Waits until it is started."""
        self.client_id = self.starting.result()
        return self

    def begin(self, command: str, **arguments: object) -> Pending:
        """Gives it a command, and does not wait for its answer."""
        return self.process.begin(command, name=self.name, **arguments)

    def call(self, command: str, **arguments: object) -> Any:
        """Gives it a command."""
        return self.begin(command, **arguments).result()

    def happenings(self, event: str) -> list[Happening]:
        """What it told of so far."""
        return [each for each in self.process.happenings(self.name) if each.event == event]

    def shutdown(self) -> None:
        """Ends it as applications do."""
        self.call("shutdown")


class Producer(NodeClient):
    """A producer."""

    def send(self, topic: str, body: bytes | str, **fields: object) -> NodeReceipt:
        """Sends a message; fields: tag, keys, properties, message_group, deliver_at (milliseconds), delay, priority."""
        return NodeReceipt(**self.call("send", message=_message(topic, body, fields)))

    def begin_send(self, topic: str, body: bytes | str, **fields: object) -> Pending:
        """As `send`, but does not wait."""
        return self.begin("send", message=_message(topic, body, fields))

    def send_many(self, topic: str, bodies: Sequence[str], together: int = 50, **fields: object) -> list[NodeReceipt]:
        """Sends a message for each body, so many at a time."""
        messages = [_message(topic, body, fields) for body in bodies]
        return [NodeReceipt(**each) for each in self.call("send_many", messages=messages, together=together)]

    def half(self, topic: str, body: bytes | str, **fields: object) -> NodeReceipt:
        """Begins a transaction with a message."""
        return NodeReceipt(**self.call("half", message=_message(topic, body, fields)))

    def commit(self, half: NodeReceipt) -> None:
        """Commits the transaction."""
        self.call("commit", transaction=half.transaction_id)

    def roll_back(self, half: NodeReceipt) -> None:
        """Rolls the transaction back."""
        self.call("rollback", transaction=half.transaction_id)

    def recall(self, topic: str, handle: str) -> str:
        """Takes a message back; its id."""
        return str(self.call("recall", topic=topic, handle=handle))

    @property
    def checks(self) -> list[Happening]:
        """The checks that came so far."""
        return self.happenings("checked")

    def answer(self, check: Happening, verdict: Verdict) -> None:
        """Says the verdict of a check that is held."""
        self.process.begin("release", token=check.token, outcome=verdict).result()

    def until_checked(self, count: int, body: str) -> list[Happening]:
        """Waits for so many checks of the message with this body."""

        def found() -> list[Happening]:
            return [check for check in self.checks if check.message is not None and check.message.text == body]

        self.process.until(lambda: len(found()) >= count, what=lambda: self.checks)
        return found()


class PushConsumer(NodeClient):
    """A push consumer."""

    @property
    def deliveries(self) -> list[Happening]:
        """What its handler was given so far."""
        return self.happenings("delivered")

    @property
    def messages(self) -> list[NodeMessage]:
        """The messages that its handler was given so far."""
        return [each.message for each in self.deliveries if each.message is not None]

    def until(self, count: int, seconds: float = PATIENCE) -> list[NodeMessage]:
        """Waits until so many messages, or more, were handled; all that were delivered."""
        self.process.until(lambda: len(self.happenings("handled")) >= count, seconds, lambda: self.messages)
        return self.messages

    def release(self, message: NodeMessage, outcome: Outcome) -> None:
        """Says what became of a message that is held."""
        self.process.begin("release", token=message.token, outcome=outcome).result()


class SimpleConsumer(NodeClient):
    """A simple consumer."""

    def receive(self, most: int = 32, invisible: float = 30) -> list[NodeMessage]:
        """Receives messages, for so many seconds; nothing, where there is nothing after its wait."""
        found = self.call("receive", most=most, invisible=invisible * 1000)
        return [NodeMessage.of(each) for each in found]

    def take(self, count: int, invisible: float = 30) -> list[NodeMessage]:
        """Receives until so many are there, and not more."""
        taken: list[NodeMessage] = []
        deadline = time.monotonic() + PATIENCE
        while len(taken) < count:
            assert time.monotonic() < deadline, f"only {taken}\n{self.process.log}"
            taken += self.receive(min(32, count - len(taken)), invisible)
        return taken

    def ack(self, *messages: NodeMessage) -> None:
        """Marks messages as handled."""
        for call in [self.begin("ack", token=message.token) for message in messages]:
            call.result()

    def change_invisible(self, message: NodeMessage, seconds: float) -> str:
        """Has a message come again after a time; its new receipt handle."""
        return str(self.call("change_invisible", token=message.token, invisible=seconds * 1000))


def own_id(message_id: str) -> str:
    """halfmq's name of a message that RocketMQ's clients know by this one."""
    assert message_id[:2] == "01", message_id
    return str(uuid.UUID(message_id[2:]))


def _message(topic: str, body: bytes | str, fields: Mapping[str, object]) -> dict[str, object]:
    content = body.encode() if isinstance(body, str) else body
    return {"topic": topic, "body": base64.b64encode(content).decode(), **fields}


def _subscriptions(topics: Sequence[str], tag: str, sql: str | None) -> dict[str, dict[str, str]]:
    return {topic: {"tag": tag} if sql is None else {"sql": sql} for topic in topics}


def _happening(told: Mapping[str, Any]) -> Happening:
    message = NodeMessage.of(told["message"]) if "message" in told else None
    token = message.token if message else told["token"]
    return Happening(told["event"], told["at"] / 1000, message, token, told.get("outcome") or told.get("verdict") or "")


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


if __name__ == "__main__":
    try:
        install()
    except Absent as absent:
        sys.exit(f"{PACKAGE}: {absent}")
