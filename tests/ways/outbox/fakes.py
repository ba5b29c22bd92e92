"""A target that remembers what it got, and does as it is told."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from client_core.errors import BrokerUnavailable, RequestRefused
from producer_sdk.outbox import NotTried

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from client_core.message import Message


class FakeTarget:
    """Stores messages in memory, once for each id, and keeps the order of groups as RelayTarget demands."""

    def __init__(self) -> None:
        self.stored: list[Message] = []
        self.calls: list[list[Message]] = []
        self.refused: set[str] = set()
        """Texts that can never be stored."""
        self.failing: set[str] = set()
        """Texts that cannot be stored now."""
        self.down = False
        self.held = threading.Event()
        self.held.set()
        self.entered = threading.Event()
        self._lock = threading.Lock()

    @property
    def texts(self) -> list[str]:
        return [text_of(message) for message in self.stored]

    def send(self, messages: Sequence[Message], may_send: Callable[[], bool]) -> list[Exception | None]:
        self.entered.set()
        self.held.wait(30)
        with self._lock:
            self.calls.append(list(messages))
            if self.down:
                raise BrokerUnavailable("down")
            stopped: set[str] = set()
            return [self._store(message, text_of(message), stopped) for message in messages]

    def _store(self, message: Message, text: str, stopped: set[str]) -> Exception | None:
        if message.message_group in stopped:
            return NotTried("before it")
        failure: Exception | None = None
        if text in self.refused:
            failure = RequestRefused(f"no {text}", reason="BODY_TOO_LARGE")
        elif text in self.failing:
            failure = BrokerUnavailable(f"not now: {text}")
        if failure is not None:
            if message.message_group is not None:
                stopped.add(message.message_group)
            return failure
        if all(each.message_id != message.message_id for each in self.stored):
            self.stored.append(message)
        return None

    def close(self) -> None:
        """Holds nothing."""


def text_of(message: Message) -> str:
    """Of a binary body, too."""
    return message.body.decode("latin-1") if isinstance(message.body, bytes) else message.body
