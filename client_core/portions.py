"""Divides what is sent into requests, or transactions, of a bounded size."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["portions"]

ItemT = TypeVar("ItemT")


def portions(
    items: Iterable[ItemT], size_of: Callable[[ItemT], int], *, most_bytes: int, most: int
) -> Iterator[list[ItemT]]:
    """Items in their order, in lists of bounded size; an item that is larger by itself is alone.

    Args:
        items: What to divide.
        size_of: Bytes of one of them.
        most_bytes: Bytes in one list at most.
        most: Items in one list at most.
    """
    some: list[ItemT] = []
    held = 0
    for item in items:
        size = size_of(item)
        if some and (len(some) >= most or held + size > most_bytes):
            yield some
            some, held = [], 0
        some.append(item)
        held += size
    if some:
        yield some
