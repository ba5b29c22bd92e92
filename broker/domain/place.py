"""A message's place: in a queue, scheduled, or recalled."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

Queue: TypeAlias = tuple[int, int]
"""Topic id and queue id."""


class InLog(NamedTuple):
    """In a queue, at an offset."""

    queue_id: int
    offset: int


class Scheduled(NamedTuple):
    """Scheduled for a time (microseconds); `topic_id` 0 if unknown."""

    due: int
    topic_id: int = 0


class Recalled(NamedTuple):
    """Recalled at a time, before it was due; times in microseconds."""

    recalled_at: int
    topic_id: int
    due: int


Place: TypeAlias = InLog | Scheduled | Recalled
