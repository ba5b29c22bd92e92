"""Positions in binary logs: sets of global transaction ids, of MySQL and of MariaDB.

MySQL numbers the transactions of each server (`uuid:1-5:8`), MariaDB those of each domain (`0-1-8`: domain, server,
number). A position holds what was read; both kinds are immutable.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from bisect import bisect_right
from typing import NamedTuple, Self

from halfmq_connect.cdc.errors import CannotFollow

__all__ = ["Gtid", "MariaDbPosition", "MySqlPosition", "Position"]

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Gtid(NamedTuple):
    """Identity of a transaction.

    Attributes:
        origin: What numbers it: a server's UUID on MySQL, a domain's number on MariaDB.
        number: Its number there.
        text: As the server writes it.
    """

    origin: str
    number: int
    text: str


class Position(ABC):
    """The transactions that were read."""

    @classmethod
    @abstractmethod
    def parse(cls, text: str) -> Self:
        """Reads what a server or `str` wrote; an empty text is the beginning."""

    @abstractmethod
    def __contains__(self, gtid: Gtid) -> bool:
        """Whether a transaction was read."""

    @abstractmethod
    def with_gtid(self, gtid: Gtid) -> Self:
        """The position after one more transaction."""

    @abstractmethod
    def covers(self, other: Self) -> bool:
        """Whether all that the other one has read was read here."""

    @abstractmethod
    def beyond(self, other: Self) -> Self:
        """What was read here, without what the other one has; for GTIDs that the other one lacks it is the same."""


class MySqlPosition(Position):
    """A GTID set of MySQL."""

    __slots__ = ("_ranges",)

    def __init__(self, ranges: dict[str, tuple[tuple[int, int], ...]] | None = None) -> None:
        """Takes the ranges of numbers of each server, ascending and not adjacent, both ends included."""
        self._ranges = ranges or {}

    @classmethod
    def parse(cls, text: str) -> MySqlPosition:
        """Reads `uuid:1-5:8,uuid:1`.

        Raises:
            CannotFollow: A GTID has a tag, which is not supported.
        """
        found: dict[str, tuple[tuple[int, int], ...]] = {}
        for part in filter(None, (each.strip() for each in text.lower().split(","))):
            origin, *intervals = part.split(":")
            if not _UUID.fullmatch(origin) or not all(re.fullmatch(r"\d+(-\d+)?", each) for each in intervals):
                msg = f"GTIDs with tags are not supported: {part[:80]}; commit without a tag (gtid_next=AUTOMATIC)"
                raise CannotFollow(msg)
            for interval in intervals:
                first, _, last = interval.partition("-")
                found[origin] = _with(found.get(origin, ()), int(first), int(last or first))
        return cls(found)

    def __contains__(self, gtid: Gtid) -> bool:
        """Whether a transaction was read."""
        ranges = self._ranges.get(gtid.origin, ())
        index = bisect_right(ranges, (gtid.number, 1 << 63)) - 1
        return index >= 0 and ranges[index][1] >= gtid.number

    def with_gtid(self, gtid: Gtid) -> MySqlPosition:
        """The position after one more transaction."""
        ranges = self._ranges.get(gtid.origin, ())
        return MySqlPosition({**self._ranges, gtid.origin: _with(ranges, gtid.number, gtid.number)})

    def covers(self, other: MySqlPosition) -> bool:
        """Whether all that the other one has read was read here."""
        return all(
            any(low <= first and last <= high for low, high in self._ranges.get(origin, ()))
            for origin, ranges in other._ranges.items()
            for first, last in ranges
        )

    def beyond(self, other: MySqlPosition) -> MySqlPosition:
        """What was read here, without what the other one has."""
        left = {origin: _without(ranges, other._ranges.get(origin, ())) for origin, ranges in self._ranges.items()}
        return MySqlPosition({origin: ranges for origin, ranges in left.items() if ranges})

    def encode(self) -> bytes:
        """As COM_BINLOG_DUMP_GTID has it."""
        parts = [len(self._ranges).to_bytes(8, "little")]
        for origin, ranges in sorted(self._ranges.items()):
            parts += [bytes.fromhex(origin.replace("-", "")), len(ranges).to_bytes(8, "little")]
            parts += [each.to_bytes(8, "little") for first, last in ranges for each in (first, last + 1)]
        return b"".join(parts)

    def __str__(self) -> str:
        """As MySQL writes it, in one line."""
        return ",".join(
            ":".join([origin, *(f"{first}-{last}" if first != last else f"{first}" for first, last in ranges)])
            for origin, ranges in sorted(self._ranges.items())
        )

    def __eq__(self, other: object) -> bool:
        """Whether it is the same set."""
        return isinstance(other, MySqlPosition) and self._ranges == other._ranges

    def __hash__(self) -> int:
        """By its text."""
        return hash(str(self))


def _with(ranges: tuple[tuple[int, int], ...], first: int, last: int) -> tuple[tuple[int, int], ...]:
    if ranges and ranges[-1][1] + 1 == first:  # The usual case: the next one.
        return (*ranges[:-1], (ranges[-1][0], last))
    merged: list[tuple[int, int]] = []
    for low, high in sorted((*ranges, (first, last))):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def _without(ranges: tuple[tuple[int, int], ...], others: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    left: list[tuple[int, int]] = []
    for first, last in ranges:
        start = first
        for low, high in others:
            if high < start:
                continue
            if low > last:
                break
            if low > start:
                left.append((start, low - 1))
            start = high + 1
        if start <= last:
            left.append((start, last))
    return tuple(left)


class MariaDbPosition(Position):
    """A GTID position of MariaDB: the last transaction of each domain."""

    __slots__ = ("_last",)

    def __init__(self, last: dict[str, tuple[int, int]] | None = None) -> None:
        """Takes server and number of each domain's last transaction."""
        self._last = last or {}

    @classmethod
    def parse(cls, text: str) -> MariaDbPosition:
        """Reads `0-1-8,5-2-3`."""
        last: dict[str, tuple[int, int]] = {}
        for part in filter(None, (each.strip() for each in text.split(","))):
            domain, server, number = part.split("-")
            last[domain] = (int(server), int(number))
        return cls(last)

    def __contains__(self, gtid: Gtid) -> bool:
        """Whether a transaction was read: numbers of a domain increase."""
        return self._last.get(gtid.origin, (0, 0))[1] >= gtid.number

    def with_gtid(self, gtid: Gtid) -> MariaDbPosition:
        """The position after one more transaction."""
        return MariaDbPosition({**self._last, gtid.origin: (int(gtid.text.split("-")[1]), gtid.number)})

    def covers(self, other: MariaDbPosition) -> bool:
        """Whether all that the other one has read was read here."""
        return all(self._last.get(domain, (0, 0))[1] >= number for domain, (_, number) in other._last.items())

    def beyond(self, other: MariaDbPosition) -> MariaDbPosition:
        """What was read here, without the domains of which the other one has as much."""
        read = other._last
        return MariaDbPosition({each: last for each, last in self._last.items() if last[1] > read.get(each, (0, 0))[1]})

    def __str__(self) -> str:
        """As MariaDB writes it."""
        return ",".join(f"{domain}-{server}-{number}" for domain, (server, number) in sorted(self._last.items()))

    def __eq__(self, other: object) -> bool:
        """Whether it is the same position."""
        return isinstance(other, MariaDbPosition) and self._last == other._last

    def __hash__(self) -> int:
        """By its text."""
        return hash(str(self))
