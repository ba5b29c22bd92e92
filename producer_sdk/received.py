"""Received messages, as far as a producer that acknowledges them has to know them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

__all__ = ["Received", "as_received"]


@runtime_checkable
class Received(Protocol):
    """A message that a consumer received."""

    @property
    def receipt_handle(self) -> str:
        """The receipt handle, which identifies this delivery at the broker."""
        ...

    def settled_elsewhere(self) -> None:
        """Has the consumer know that it is acknowledged."""
        ...


def as_received(received: Received | Iterable[Received]) -> tuple[Received, ...]:
    """Accepts one message as a sequence of one.

    Raises:
        TypeError: Something in it is no message that a consumer received.
    """
    listed = tuple(received) if isinstance(received, Iterable) else (received,)
    for each in listed:
        if not isinstance(each, Received):
            msg = f"expected messages that a consumer received, got {type(each).__name__}: {each!r}"
            raise TypeError(msg)
    return listed
