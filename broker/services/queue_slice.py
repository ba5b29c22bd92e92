"""What reading a queue gives."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass
from typing import Generic, TypeVar

Messages = TypeVar("Messages", bound=Sized)
"""Messages one by one (a list of LogMessage), or by columns (LogColumns)."""


@dataclass(frozen=True, slots=True)
class QueueMeasure:
    """How many bytes of bodies a part of a queue has, and where the part ends."""

    end_offset: int
    bytes: int


@dataclass(slots=True)
class QueueSlice(Generic[Messages]):
    """Messages of a queue, where it begins and ends, and where to go on reading."""

    messages: Messages
    min_offset: int
    max_offset: int
    next_offset: int = 0
