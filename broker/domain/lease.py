"""Range leases: which consumer may handle which offsets, and until when.

Delivering the offsets [first, first + count) of a queue to a consumer creates one lease, not one record per message. A
lease has a fencing token that changes whenever another owner takes the lease over, so an acknowledgement by the former
owner is detected as stale. Settled messages are marked in a bitmap; a lease whose messages are all settled is deleted.
A message that is nacked individually moves into a separate lease, with its own time.

`available_at` is the one time of a lease: until then it belongs to its owner (or waits, when it has none); from then on
the next consumer that pulls takes it, as the next attempt.

Messages of a message group keep their order: they have separate leases, one of which may be held or waiting at a time;
the others are queued behind it (`available_at` is NEVER) until it is deleted, and the last of them takes in what
follows. Such a lease is nacked as a whole, and its attempt counts for the first message that is not settled: those
after it have not been tried.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from broker.errors import InvalidArgument, Refused, StaleReceipt

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


NEVER = 1 << 62
LARGEST_RANGE = 1024
"""Offsets of a lease, each of which has a bit in it."""

LONGEST_HOLD = 24 * 3600 * 1_000_000
"""Microseconds after which a delivery cannot be extended further; its last extension keeps its duration."""
_LEFT_ALONE = 30 * 24 * 3600 * 1_000_000
_MINUTE = 60 * 1_000_000
_RANDOM_BITS = 36


def token_of(time: int, chance: int) -> int:
    """A fencing token with the minute in which its delivery began; `chance` is its unguessable part."""
    return (-(-time // _MINUTE) << _RANDOM_BITS | chance & (1 << _RANDOM_BITS) - 1) & (1 << 62) - 1


def extended_until_at_most(token: int, now: int) -> int:
    """The time from which the delivery of a token cannot be extended; NEVER for a token without a time.

    Older brokers generated fully random tokens. Only one in a thousand of them looks like a recent time.
    """
    until = (token >> _RANDOM_BITS) * _MINUTE + LONGEST_HOLD
    return until if now - _LEFT_ALONE <= until <= now + LONGEST_HOLD + _MINUTE else NEVER


# One text per number: any other spelling is not a handle.
_NUMBER = "(?:0|[1-7][0-9a-f]{15}|[1-9a-f][0-9a-f]{0,14})"
_RECEIPT = re.compile(rf"({_NUMBER})\.({_NUMBER})\.({_NUMBER})")
_OFFSETS = re.compile(rf"{_NUMBER}(?:\.{_NUMBER})*")


@dataclass(frozen=True, slots=True)
class Receipt:
    """Identifies one delivery of one message: its lease, the token of that delivery, and the offset."""

    lease_id: int
    token: int
    offset: int

    @classmethod
    def parse(cls, handle: str) -> Self:
        """Parses a receipt handle.

        Raises:
            InvalidArgument: the text is not a receipt handle.
        """
        found = _RECEIPT.fullmatch(handle)
        if not found:
            raise _no_receipt(handle)
        return cls(*[int(number, 16) for number in found.groups()])

    @property
    def lease_key(self) -> str:
        """Lease and token as a text: the common part of the handles of one lease."""
        return f"{self.lease_id:x}.{self.token:x}"

    @property
    def handle(self) -> str:
        """The receipt handle."""
        return f"{self.lease_id:x}.{self.token:x}.{self.offset:x}"


def parse_offsets(texts: Sequence[str]) -> list[int]:
    """The offsets in the last parts of receipt handles.

    Raises:
        InvalidArgument: a text is malformed.
    """
    # None of them has a dot in it: it would not be the last part.
    together = ".".join(texts)
    if not _OFFSETS.fullmatch(together):
        raise _no_receipt(together)
    return [int(text, 16) for text in texts]


def _no_receipt(text: str) -> InvalidArgument:
    return InvalidArgument(
        f"{text[:80]!r} is not a receipt handle; send back the text that came with the delivery.",
        field="receipt_handle",
        reason="RECEIPT_INVALID",
    )


@dataclass(frozen=True, slots=True)
class Lease:
    """Consecutive offsets of a queue, leased to one consumer of a group.

    Attributes:
        settled: bit i is set when offset `first + i` needs no further delivery under this lease.
        moved: bit i is set when it is settled because it moved into another lease.
    """

    lease_id: int
    group_id: int
    queue_id: int
    first: int
    count: int
    token: int
    attempt: int
    available_at: int
    owner: str | None = None
    settled: int = 0
    moved: int = 0
    last_error: str | None = None
    message_group: str | None = None

    @classmethod
    def of_offsets(cls, group_id: int, queue_id: int, offsets: Sequence[int], **others: Any) -> Self:
        """A lease of these ascending offsets only; those between them are marked as moved."""
        first, count = offsets[0], offsets[-1] - offsets[0] + 1
        foreign = (1 << count) - 1 & ~bits_of(offsets, first)
        return cls(
            lease_id=0,
            group_id=group_id,
            queue_id=queue_id,
            first=first,
            count=count,
            settled=foreign,
            moved=foreign,
            **others,
        )

    @property
    def first_unsettled(self) -> int:
        """The first offset that is not settled."""
        return self.open_offsets()[0]

    @property
    def done(self) -> bool:
        """Whether nothing is left to deliver."""
        return self.settled == (1 << self.count) - 1

    def open_offsets(self) -> Sequence[int]:
        """Offsets that are not settled, ascending."""
        return offsets_of((1 << self.count) - 1 & ~self.settled, self.first)

    def check_receipt(self, token: int, offset: int) -> None:
        """Refuses a receipt that is no longer valid for this lease.

        Raises:
            StaleReceipt: the message was delivered again, or moved to another lease.
        """
        if token != self.token:
            raise StaleReceipt(
                "This delivery no longer counts: its lease expired and another consumer has the message, or it was"
                " nacked together with an earlier message of its message group.",
                reason="RECEIPT_STALE",
            )
        index = offset - self.first
        if not 0 <= index < self.count or self.moved >> index & 1:
            raise StaleReceipt(
                "The message was given back with this receipt before, or delivered again since.", reason="RECEIPT_STALE"
            )

    def acknowledged(self, offset: int) -> bool | None:
        """Whether a message was acknowledged, with whichever receipt; None: this lease does not tell."""
        index = offset - self.first
        if not 0 <= index < self.count:
            return None
        if self.moved >> index & 1 or not self.settled >> index & 1:
            return False
        # In a message group those that were given up are settled, too.
        return True if self.message_group is None else None

    def joined(self, later: Lease) -> Lease | None:
        """A queued lease of a message group with the messages of one that is to be queued behind it.

        None if that has to be a lease of its own: this one is not queued any more, was redriven, and would have others
        before it then whose turn is later, or would be too long.
        """
        apart = later.first - self.first
        queued, redriven = self.available_at == NEVER and not self.attempt, self.last_error is not None
        if not queued or redriven or not self.count <= apart <= LARGEST_RANGE - later.count:
            return None
        # Offsets between the two are of others.
        between = (1 << apart) - (1 << self.count)
        return replace(
            self,
            count=apart + later.count,
            settled=self.settled | between | later.settled << apart,
            moved=self.moved | between | later.moved << apart,
        )

    def settle(self, offsets: Iterable[int]) -> Lease:
        """The lease with these offsets handled; offsets that were settled before are unchanged."""
        settled = self.settled
        for offset in offsets:
            settled |= 1 << offset - self.first
        return replace(self, settled=settled)

    def move_out(self, offsets: Iterable[int]) -> Lease:
        """The lease with these offsets moved to separate leases, or to the dead letter topic."""
        gone = self.settle(offsets).settled & ~self.settled
        return replace(self, settled=self.settled | gone, moved=self.moved | gone)

    def acked(self, bits: int) -> Lease:
        """The lease with the messages of a bitmap handled."""
        after = replace(self, settled=self.settled | bits)
        if self.message_group is None or after.done or after.first_unsettled == self.first_unsettled:
            return after
        # Another message is the head now: this delivery is its first attempt.
        return replace(after, attempt=1, last_error=None)

    def back(self, *, token: int, available_at: int, untried: bool, reason: str | None) -> Lease:
        """The lease of a message group, nacked: it has no owner until a time, and earlier receipts are stale."""
        attempt = self.attempt - 1 if untried else self.attempt
        return replace(
            self,
            owner=None,
            token=token,
            attempt=attempt,
            available_at=available_at,
            last_error=self.last_error if untried else reason,
        )

    def cut(self, start: int, end: int) -> Lease:
        """The part of the lease at [start, end), as a lease without a number."""
        keep = (1 << end - start) - 1
        shift = start - self.first
        return replace(
            self,
            lease_id=0,
            first=start,
            count=end - start,
            settled=self.settled >> shift & keep,
            moved=self.moved >> shift & keep,
        )

    def take_over(self, *, owner: str, token: int, until: int) -> Lease:
        """The lease with a new owner: the next attempt, under a new token."""
        return replace(self, owner=owner, token=token, attempt=self.attempt + 1, available_at=until)


def runs(offsets: Iterable[int]) -> list[tuple[int, int]]:
    """Consecutive runs of ascending offsets, as (first, count)."""
    stretches: list[tuple[int, int]] = []
    for offset in offsets:
        if stretches and stretches[-1][0] + stretches[-1][1] == offset:
            stretches[-1] = (stretches[-1][0], stretches[-1][1] + 1)
        else:
            stretches.append((offset, 1))
    return stretches


def bits_of(offsets: Sequence[int], first: int) -> int:
    """The bitmap of some offsets; bit 0 stands for `first`."""
    low, count = min(offsets), len(offsets)
    if count > 1 and max(offsets) - low == count - 1 and len(set(offsets)) == count:
        return (1 << count) - 1 << low - first
    bits = 0
    for offset in offsets:
        bits |= 1 << offset - first
    return bits


def offsets_of(bits: int, first: int) -> Sequence[int]:
    """The offsets in a bitmap, ascending; bit 0 stands for `first`."""
    end = bits.bit_length()
    low = (bits & -bits).bit_length() - 1 if bits else end
    if bits >> low == (1 << end - low) - 1:
        return range(first + low, first + end)
    return [first + i for i in range(low, end) if bits >> i & 1]


def held_too_long() -> Refused:
    """The error for extending a delivery that is too old."""
    return Refused(
        f"This delivery is {LONGEST_HOLD // 3_600_000_000} h old and extended no more: settle it before its lease ends,"
        " or it is delivered again. Acknowledge longer work when it is taken on, not when it is done.",
        reason="LEASE_HELD_TOO_LONG",
        field="receipt_handle",
    )


def receipt_gone() -> StaleReceipt:
    """The error for a receipt whose lease does not exist any more."""
    return StaleReceipt(
        "Every message of this lease is settled already (handled, given back, or delivered again under another lease).",
        reason="RECEIPT_GONE",
    )
