"""Range leases: who may handle which offsets, and until when.

Handing out the offsets [first, first + count) of a queue to a consumer makes one lease, not one record per message. A
lease carries a token that changes whenever somebody else takes the lease over, so an acknowledgement by the former
owner is recognised as stale (a fencing token). Settled messages are marked in a bitmap; a lease whose messages are all
settled is gone. A message that is given back alone moves into a lease of its own, with its own time.

`available_at` is the one time of a lease: until then it belongs to its owner (or waits, when it has none); from then
on whoever pulls next takes it, as the next attempt.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from broker.errors import InvalidArgument, StaleReceipt

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


_RECEIPT = re.compile(r"([0-9a-f]{1,16})\.([0-9a-f]{1,16})\.([0-9a-f]{1,16})")


@dataclass(frozen=True, slots=True)
class ReceiptHandle:
    """Names one delivery of one message: its lease, the token of that time, and the offset."""

    lease_id: int
    token: int
    offset: int

    def __str__(self) -> str:
        """The text consumers send back."""
        return f"{self.lease_id:x}.{self.token:x}.{self.offset:x}"


def parse_receipt(text: str) -> tuple[int, int, int]:
    """Lease id, token and offset of a receipt handle.

    Raises:
        InvalidArgument: the text is not a receipt handle.
    """
    found = _RECEIPT.fullmatch(text)
    numbers = [int(number, 16) for number in found.groups()] if found else []
    if not numbers or max(numbers) >= 1 << 63:
        raise InvalidArgument(
            f"{text[:80]!r} is not a receipt handle; send back the text that came with the delivery.",
            field="receipt_handle",
            reason="RECEIPT_INVALID",
        )
    lease_id, token, offset = numbers
    return lease_id, token, offset


@dataclass(frozen=True, slots=True)
class Lease:
    """Some consecutive offsets of a queue in the hands of one consumer of a group.

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

    @property
    def done(self) -> bool:
        """Whether nothing is left to deliver."""
        return self.settled == (1 << self.count) - 1

    def open_offsets(self) -> Iterator[int]:
        """Offsets that are not settled, ascending."""
        return (self.first + i for i in range(self.count) if not self.settled >> i & 1)

    def check_receipt(self, token: int, offset: int) -> None:
        """Refuses a receipt that does not speak for this lease any more.

        Raises:
            StaleReceipt: another delivery of the message has been made, or the message moved on.
        """
        if token != self.token:
            raise StaleReceipt(
                "The lease expired and the message was delivered again; this delivery no longer counts.",
                reason="RECEIPT_STALE",
            )
        index = offset - self.first
        if not 0 <= index < self.count or self.moved >> index & 1:
            raise StaleReceipt(
                "The message was given back with this receipt before, or delivered again since.", reason="RECEIPT_STALE"
            )

    def settle(self, offsets: Iterable[int]) -> Lease:
        """The lease with these offsets handled. Offsets that were settled before stay so."""
        settled = self.settled
        for offset in offsets:
            settled |= 1 << offset - self.first
        return replace(self, settled=settled)

    def move_out(self, offsets: Iterable[int]) -> Lease:
        """The lease with these offsets gone to leases of their own, or to the dead letter topic."""
        gone = self.settle(offsets).settled & ~self.settled
        return replace(self, settled=self.settled | gone, moved=self.moved | gone)

    def take_over(self, *, owner: str, token: int, until: int) -> Lease:
        """The lease in new hands: the next attempt, under a new token."""
        return replace(self, owner=owner, token=token, attempt=self.attempt + 1, available_at=until)


def runs(offsets: Iterable[int]) -> list[tuple[int, int]]:
    """Consecutive stretches of ascending offsets, as (first, count)."""
    stretches: list[tuple[int, int]] = []
    for offset in offsets:
        if stretches and stretches[-1][0] + stretches[-1][1] == offset:
            stretches[-1] = (stretches[-1][0], stretches[-1][1] + 1)
        else:
            stretches.append((offset, 1))
    return stretches


def receipt_gone() -> StaleReceipt:
    """What is said of a receipt whose lease does not exist any more."""
    return StaleReceipt(
        "Every message of this lease is settled already (handled, or delivered again under another lease).",
        reason="RECEIPT_GONE",
    )
