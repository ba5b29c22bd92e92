"""What reading a queue gives."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass
from typing import Generic, TypeVar

Messages = TypeVar("Messages", bound=Sized)
"""Messages one by one (a list of LogMessage), or by columns (LogColumns)."""


@dataclass(slots=True)
class QueueSlice(Generic[Messages]):
    """Messages of a queue, where it begins and ends, and where to go on reading."""

    messages: Messages
    min_offset: int
    max_offset: int
    next_offset: int = 0
