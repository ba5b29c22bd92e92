"""How far a streaming query is behind its topics."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from consumer_sdk.spark.source.offsets import from_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.streaming.listener import StreamingQueryProgress

    from consumer_sdk.spark.source.offsets import Queue

__all__ = ["StreamLag", "lag_of"]


@dataclass(frozen=True)
class StreamLag:
    """How many messages a query had not read at the end of a micro-batch.

    Attributes:
        by_queue: Messages by topic and number of the queue.
    """

    by_queue: Mapping[Queue, int]

    @property
    def total(self) -> int:
        """Messages of all queues."""
        return sum(self.by_queue.values())

    @property
    def largest(self) -> int:
        """Messages of the queue that has most."""
        return max(self.by_queue.values(), default=0)


def lag_of(progress: StreamingQueryProgress | Mapping[str, Any] | None) -> StreamLag:
    """How far behind its topics a query is, by its progress.

    Args:
        progress: ``query.lastProgress``, one of ``query.recentProgress``, or what a StreamingQueryListener gets as
            ``event.progress``; None, as before the first trigger: no lag is known.
    """
    lag: dict[Queue, int] = {}
    for source in [] if progress is None else json.loads(_json_of(progress))["sources"]:
        ends, heads = _offsets_of(source.get("endOffset")), _offsets_of(source.get("latestOffset"))
        if isinstance(heads, dict) and all(isinstance(queues, dict) for queues in heads.values()):
            read = from_json(ends) if isinstance(ends, dict) else {}
            lag |= {queue: max(0, head - read.get(queue, 0)) for queue, head in from_json(heads).items()}
    return StreamLag(lag)


def _json_of(progress: StreamingQueryProgress | Mapping[str, Any]) -> str:
    # Progress of Spark is a dict in some places and an object in others.
    text = getattr(progress, "json", None)
    return str(text) if text is not None else json.dumps(progress, default=str)


def _offsets_of(offset: object) -> Any:
    """An offset of the progress: Spark gives it as JSON, or as a text of it."""
    try:
        return json.loads(offset) if isinstance(offset, str) else offset
    except ValueError:
        return None
