"""A TCP proxy that stands between a broker and its MySQL or MariaDB and breaks things at an exact statement.

It reads the commands of the client (COM_QUERY: a driver that sends text, as PyMySQL does) and remembers what each
transaction did. A rule then acts on a chosen COMMIT or statement: before the server gets it, or after the server
carried it out and before the client hears of it. A command may hold several statements, with ";\\n" between them.

    with MySqlProxy.to(base_url) as proxy:
        broker = start_broker(database=proxy.url(base_url))
        rule = proxy.on_commit(matching="op_record", when="after", action=broker.kill)
        ...
        rule.wait(10)

The server's greeting is changed so that the client asks for neither TLS nor compression; all else passes as it is.
Packets: https://dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_basic_packets.html
"""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Literal, Self, TypeAlias
from urllib.parse import urlsplit

from faults.mysql_replies import Reply

if TYPE_CHECKING:
    from types import TracebackType

_COM_QUERY = 0x03
_ERR = 0xFF
_BETWEEN = b";\n"
_COMMIT = re.compile(r"\s*COMMIT\s*;?\s*", re.IGNORECASE)
_NEW_TRANSACTION = re.compile(r"\s*(COMMIT|ROLLBACK|BEGIN|START\s+TRANSACTION)\s*;?\s*", re.IGNORECASE)
_NOW = b"NOW(6)"
# Capabilities hidden from the client: compress, TLS, zstd, query attributes (they change how a statement is packed).
_HIDDEN = 1 << 5 | 1 << 11 | 1 << 26 | 1 << 27
# What a transaction is remembered by: its last statements, each by its start, where the tables are named.
_STATEMENTS, _CHARACTERS = 1000, 2000

When: TypeAlias = Literal["before", "after"]
Predicate: TypeAlias = Callable[[str, Sequence[str]], bool]


@dataclass(frozen=True)
class Delay:
    """Action: hold the statement (before) or its reply (after) for some seconds, then let it pass."""

    seconds: float


@dataclass(frozen=True)
class SqlError:
    """Action, only before: the server never gets the statement; the client gets this error and stays connected.

    Of a command with several statements the server gets those before it, and then raises the error itself.
    """

    code: int
    state: str = "HY000"
    message: str = "injected by the test"

    def packet(self) -> bytes:
        """The server's reply to a command that failed like this."""
        payload = struct.pack("<BH", _ERR, self.code) + f"#{self.state}{self.message}".encode()
        return _packet(payload, 1)

    def command(self, earlier: Sequence[bytes]) -> bytes:
        """A command that does the statements and then fails like this."""
        signal = f"SIGNAL SQLSTATE '{self.state}' SET MYSQL_ERRNO = {self.code}, MESSAGE_TEXT = '{self.message}'"
        return _packet(bytes((_COM_QUERY,)) + _BETWEEN.join([*earlier, signal.encode()]), 0)


@dataclass(frozen=True)
class Kept:
    """Action, only before: the server never gets the statement, and the client is told that it was carried out."""

    def packet(self) -> bytes:
        """The server's reply to a statement that changed nothing, outside of a transaction."""
        return _packet(bytes(7), 1)


@dataclass(frozen=True)
class Late:
    """Action, only before: the client's connection is cut at once; the server gets the statement some seconds later."""

    seconds: float


@dataclass(frozen=True)
class Then:
    """Action: something is called, and the statement (before) or its reply (after) goes on its way."""

    call: Callable[[], object]


# A callable is called, then the connection is cut on both sides; "cut" only cuts.
Action: TypeAlias = Callable[[], object] | Literal["cut"] | Delay | SqlError | Kept | Late | Then


class Rule:
    """What to do at the statements it matches. Made by the proxy; a test keeps it to wait for it."""

    def __init__(self, matches: Predicate, *, when: When, action: Action, times: int | None, skip: int) -> None:
        """Takes which statements to act on (given the earlier ones of the transaction), and how."""
        if when == "after" and isinstance(action, SqlError | Kept | Late):
            raise ValueError(f"{type(action).__name__} is about a statement on its way: use it with when='before'")
        self.when = when
        self.action = action
        self._matches = matches
        self._times = times
        self._skip = skip
        self._claimed = 0
        self._fired = 0
        self._changed = threading.Condition()

    @property
    def fired(self) -> int:
        """How many times the action was carried out."""
        with self._changed:
            return self._fired

    def wait(self, timeout: float, *, fired: int | None = None) -> None:
        """Returns once the action was carried out `fired` times (by default all its times), or raises TimeoutError."""
        wanted = fired or self._times or 1
        with self._changed:
            if not self._changed.wait_for(lambda: self._fired >= wanted, timeout):
                raise TimeoutError(f"acted {self._fired} of {wanted} times in {timeout} s")

    def claim(self, statement: str, earlier: Sequence[str]) -> bool:
        """Whether to act on this statement. A claim ends in `carried_out` or `give_back`."""
        with self._changed:
            if self._claimed == self._times or not self._matches(statement, earlier):
                return False
            if self._skip > 0:
                self._skip -= 1
                return False
            self._claimed += 1
            return True

    def carried_out(self) -> None:
        """Counts the action and wakes those who wait for it."""
        with self._changed:
            self._fired += 1
            self._changed.notify_all()

    def give_back(self) -> None:
        """The claimed statement failed by itself: the rule is free for another."""
        with self._changed:
            self._claimed -= 1


class MySqlProxy:
    """Listens on a free port of 127.0.0.1 while open; every connection to it is one to the server."""

    def __init__(self, target_host: str, target_port: int) -> None:
        """Takes where the server listens; it is dialled again for every client, so it may be restarted."""
        self.target = (target_host, target_port)
        self.gate = threading.Event()
        self.gate.set()
        self.closed = threading.Event()
        self.clock = 0  # seconds by which the server's clock seems to be ahead
        self._rules: list[Rule] = []
        self._links: set[_Link] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._acceptor = threading.Thread(target=self._accept, name="mysql-proxy", daemon=True)

    @classmethod
    def to(cls, url: str) -> Self:
        """A proxy to the server that a database URL names."""
        parts = urlsplit(url)
        return cls(parts.hostname or "127.0.0.1", parts.port or 3306)

    @property
    def port(self) -> int:
        """Where the proxy listens."""
        port: int = self._listener.getsockname()[1]
        return port

    def url(self, base_url: str) -> str:
        """The same database URL, through the proxy."""
        parts = urlsplit(base_url)
        user, at, _ = parts.netloc.rpartition("@")
        return parts._replace(netloc=f"{user}{at}127.0.0.1:{self.port}").geturl()

    def on_commit(
        self, *, when: When, action: Action, matching: str | None = None, times: int | None = 1, skip: int = 0
    ) -> Rule:
        """Acts on COMMITs, of transactions with a statement in which the pattern `matching` is found.

        Args:
            when: "before": the server never gets the COMMIT. "after": it succeeded, the client does not get the reply.
            action: what to do; see `Action`.
            matching: a regular expression, searched in the earlier statements of the transaction.
            times: how often to act; None is always.
            skip: how many matching COMMITs to let pass first.
        """

        def matches(statement: str, earlier: Sequence[str]) -> bool:
            wanted = matching is None or any(re.search(matching, each) for each in earlier)
            return wanted and _COMMIT.fullmatch(statement) is not None

        return self._add(Rule(matches, when=when, action=action, times=times, skip=skip))

    def on_statement(self, pattern: str, *, when: When, action: Action, times: int | None = 1, skip: int = 0) -> Rule:
        """Acts on the statements in which the pattern is found; the rest is as in `on_commit`."""

        def matches(statement: str, _earlier: Sequence[str]) -> bool:
            return re.search(pattern, statement) is not None

        return self._add(Rule(matches, when=when, action=action, times=times, skip=skip))

    def forget(self, rule: Rule) -> None:
        """Forgets a rule."""
        with self._lock:
            self._rules = [each for each in self._rules if each is not rule]

    def on(self, matches: Predicate, *, when: When, action: Action, times: int | None = 1) -> Rule:
        """Acts on what `matches` (given a statement and the earlier ones of its transaction) says yes to."""
        return self._add(Rule(matches, when=when, action=action, times=times, skip=0))

    def clear(self) -> None:
        """Forgets all rules."""
        with self._lock:
            self._rules.clear()

    def pause(self) -> None:
        """Holds everything in both directions, of new connections too: a network that went silent."""
        self.gate.clear()

    def resume(self) -> None:
        """Lets what was held pass."""
        self.gate.set()

    def cut_all(self) -> None:
        """Ends all connections; new ones are served."""
        with self._lock:
            links = list(self._links)
        for link in links:
            link.cut()

    def close(self) -> None:
        """Ends all connections and stops listening."""
        self.closed.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._acceptor.join()
        self._listener.close()
        self.gate.set()
        with self._lock:
            links = list(self._links)
        for link in links:
            link.cut()
            link.thread.join(10)

    def __enter__(self) -> Self:
        """Begins to listen."""
        self._acceptor.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes."""
        self.close()

    def claim(self, statement: str, earlier: Sequence[str]) -> Rule | None:
        """The first rule that acts on this statement."""
        with self._lock:
            rules = list(self._rules)
        return next((rule for rule in rules if rule.claim(statement, earlier)), None)

    def _add(self, rule: Rule) -> Rule:
        with self._lock:
            self._rules.append(rule)
        return rule

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while not self.closed.is_set():
                client, _ = self._listener.accept()
                link = _Link(self, client, self._forget)
                with self._lock:
                    self._links.add(link)
                link.thread.start()

    def _forget(self, link: _Link) -> None:
        with self._lock:
            self._links.discard(link)


class _Link:
    """One client's connection and ours to the server, with a thread for each direction."""

    def __init__(self, proxy: MySqlProxy, client: socket.socket, ended: Callable[[_Link], None]) -> None:
        self.thread = threading.Thread(target=self._run, name="mysql-proxy-link", daemon=True)
        self._proxy = proxy
        self._client = client
        self._server: socket.socket | None = None
        self._ended = ended
        self._earlier: deque[str] = deque(maxlen=_STATEMENTS)
        self._after: Rule | None = None  # acts on the next reply; set before the statement is forwarded

    def cut(self) -> None:
        """Ends both connections; the server rolls back what was open."""
        for end in (self._client, self._server):
            if end is not None:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def _run(self) -> None:
        try:
            with self._client, contextlib.suppress(OSError), socket.create_connection(self._proxy.target, 10) as server:
                server.settimeout(None)
                for end in (self._client, server):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._server = server
                replies = threading.Thread(target=self._to_client, args=(server,), name="mysql-proxy-replies")
                replies.start()
                self._pump(self._to_server, server)
                replies.join()
        finally:
            self._ended(self)

    def _to_client(self, server: socket.socket) -> None:
        self._pump(self._copy_replies, server)
        if self._after is not None:  # the server went away while it carried the statement out
            self._after.give_back()

    def _pump(self, copy: Callable[[socket.socket], None], server: socket.socket) -> None:
        try:
            with contextlib.suppress(OSError):
                copy(server)
        finally:
            self.cut()

    def _to_server(self, server: socket.socket) -> None:
        with self._client.makefile("rb") as stream:
            while packet := _read_packet(stream):
                self._proxy.gate.wait()
                # A command begins a sequence; packets of the login and of a long statement have higher numbers.
                is_query = packet[3:5] == bytes((0, _COM_QUERY))
                if is_query:
                    packet = self._after_rules(packet)
                if self._proxy.clock and is_query and packet and _NOW in packet:
                    moved = b"DATE_ADD(%s, INTERVAL %d SECOND)" % (_NOW, self._proxy.clock)
                    packet = _packet(packet[4:].replace(_NOW, moved), 0)
                if packet:
                    server.sendall(packet)

    def _after_rules(self, packet: bytes) -> bytes:
        """What the server gets of a command: all of it, another one, or nothing."""
        statements = packet[5:].split(_BETWEEN)
        for index, statement in enumerate(statements):
            text = statement[:_CHARACTERS].decode(errors="replace")
            rule = self._proxy.claim(text, self._earlier)
            if _NEW_TRANSACTION.fullmatch(text):
                self._earlier.clear()
            else:
                self._earlier.append(text)
            if rule is None:
                continue
            if rule.when == "after":
                self._after = rule
            elif index and isinstance(rule.action, SqlError):
                rule.carried_out()
                return rule.action.command(statements[:index])
            elif isinstance(rule.action, Late):
                self._deliver_late(rule, rule.action.seconds, packet)
                return b""
            elif not self._act(rule):
                return b""
        return packet

    def _copy_replies(self, server: socket.socket) -> None:
        with server.makefile("rb", buffering=0) as stream:
            greeting = _read_packet(stream)
        self._proxy.gate.wait()
        self._client.sendall(_without_hidden(greeting))
        # A client waits for a reply before its next command, so no reply needs to be told from the one before it.
        while data := server.recv(1 << 16):
            self._proxy.gate.wait()
            if self._after is not None:
                reply = Reply()
                reply.add(data)
                # A COMMIT behind other statements has the last result, which need not come with the first.
                while not reply.complete and (data := server.recv(1 << 16)):
                    reply.add(data)
                if not reply.complete:
                    return
                rule, self._after = self._after, None
                if reply.failed:
                    rule.give_back()
                elif not self._act(rule):
                    return
                data = reply.data
            self._client.sendall(data)

    def _deliver_late(self, rule: Rule, seconds: float, packet: bytes) -> None:
        """Cuts off the client; the server carries the statement out when it arrives, and nobody hears of it."""
        with contextlib.suppress(OSError):
            self._client.shutdown(socket.SHUT_RDWR)
        self._proxy.closed.wait(seconds)
        server, self._server = self._server, None  # its replies find no client; the server must get this all the same
        if server is not None:
            with contextlib.suppress(OSError):
                server.sendall(packet)
                server.shutdown(socket.SHUT_WR)
        rule.carried_out()

    def _act(self, rule: Rule) -> bool:
        """Carries out the action; whether the statement or reply goes on its way after it.

        The rule counts it before the client can notice, so a test that saw the effect also sees the count.
        """
        action = rule.action
        if isinstance(action, Delay):
            self._proxy.closed.wait(action.seconds)
            rule.carried_out()
            return True
        if isinstance(action, SqlError | Kept):
            rule.carried_out()
            self._client.sendall(action.packet())
            return False
        if isinstance(action, Then):
            action.call()
            rule.carried_out()
            return True
        try:
            if action != "cut" and not isinstance(action, Late):
                action()
            rule.carried_out()
        finally:
            self.cut()
        return False


def _packet(payload: bytes, number: int) -> bytes:
    """A payload with its header: length (3), number in the sequence (1)."""
    return struct.pack("<I", len(payload))[:3] + bytes((number,)) + payload


def _read_packet(stream: BinaryIO | socket.SocketIO) -> bytes:
    """One packet with its header, or nothing at the end of the stream."""
    header = _read(stream, 4)
    return header + _read(stream, int.from_bytes(header[:3], "little")) if header else b""


def _read(stream: BinaryIO | socket.SocketIO, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = stream.read(size - len(data))
        if not more:
            return b""
        data += more
    return data


def _without_hidden(greeting: bytes) -> bytes:
    """The server's greeting, less the capabilities that would hide statements from us.

    Header (4), protocol version (1), server version up to NUL, thread id (4), challenge (8), filler (1), low
    capabilities (2), character set (1), status (2), high capabilities (2). Anything else is an error, left as it is.
    """
    if greeting[4:5] != b"\x0a":
        return greeting
    low = greeting.index(b"\0", 5) + 1 + 4 + 8 + 1
    high = low + 2 + 1 + 2
    changed = bytearray(greeting)
    for at, mask in ((low, _HIDDEN & 0xFFFF), (high, _HIDDEN >> 16)):
        (capabilities,) = struct.unpack_from("<H", changed, at)
        struct.pack_into("<H", changed, at, capabilities & ~mask)
    return bytes(changed)
