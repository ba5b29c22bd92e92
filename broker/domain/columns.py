"""Messages of the log by columns: many cost little more than one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class LogColumns:
    """Messages of one queue, in the order of their offsets; each column has an entry for each of them.

    Times are in microseconds. Optional columns are None if no message has a value. The properties include the broker's
    own ones.
    """

    topic: str
    queue_no: int
    offsets: Sequence[int]
    transaction_ids: Sequence[bytes]
    positions: Sequence[int]
    bodies: Sequence[bytes] = field(repr=False)
    born_at: Sequence[int]
    stored_at: Sequence[int]
    tags: Sequence[str | None] | None = field(default=None, repr=False)
    keys: Sequence[Sequence[str]] | None = field(default=None, repr=False)
    properties: Sequence[dict[str, str]] | None = field(default=None, repr=False)
    message_groups: Sequence[str | None] | None = None

    def __len__(self) -> int:
        """Number of messages."""
        return len(self.offsets)
