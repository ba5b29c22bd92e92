"""The message interface for filters, and the two types of functions that a filter consists of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol


class Subject(Protocol):
    """A message as filters see it."""

    @property
    def topic(self) -> str:
        """Name of the topic."""

    @property
    def queue_no(self) -> int:
        """Number of the queue."""

    @property
    def offset(self) -> int:
        """Offset in the queue."""

    @property
    def tag(self) -> str | None:
        """The tag, if it has one."""

    @property
    def keys(self) -> Sequence[str]:
        """The keys, perhaps none."""

    @property
    def properties(self) -> Mapping[str, str]:
        """Properties, including the broker's own ones."""

    @property
    def message_group(self) -> str | None:
        """The message group, if it is in one."""

    @property
    def priority(self) -> int:
        """The priority."""

    @property
    def size(self) -> int:
        """Bytes of the body."""

    @property
    def born_at(self) -> int:
        """When it was made: microseconds since 1970, by the producer's clock."""

    @property
    def stored_at(self) -> int:
        """When it was stored: microseconds since 1970, by the broker's clock."""

    @property
    def transaction_id(self) -> bytes:
        """The 16 bytes of the transaction's id."""

    @property
    def position(self) -> int:
        """Position in the transaction, from 0."""


Number = int | float

Reader = Callable[[Subject], str | Number | bool | None]
"""Reads a value from a message. None is SQL's NULL."""

NumberReader = Callable[[Subject], Number | None]

Condition = Callable[[Subject], bool | None]
"""Evaluates a message. None is SQL's unknown."""
