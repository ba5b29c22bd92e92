"""Names of files, and the information in them: archived messages, missing ones, and effective files."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple
from urllib.parse import quote, unquote

if TYPE_CHECKING:
    from collections.abc import Iterable

    from consumer_sdk.spark.source.offsets import Queue

__all__ = [
    "Chosen",
    "Piece",
    "Span",
    "chosen",
    "cut",
    "file_name",
    "merged",
    "missing",
    "note_name",
    "parse",
    "spans_by_queue",
    "topic_folder",
    "topic_note",
]

_FILE = re.compile(
    r"topic=(?P<topic>[^/]+)/date=(?P<date>\d{4}-\d\d-\d\d)/q(?P<queue>\d+)-(?P<first>\d+)-(?P<end>\d+)\.parquet"
)
_ABSENT = re.compile(r"topic=(?P<topic>[^/]+)/_(?:skipped|lost|gap)/q(?P<queue>\d+)-(?P<first>\d+)-(?P<end>\d+)")


class Span(NamedTuple):
    """Offsets [first, end) of a queue."""

    first: int
    end: int


@dataclass(frozen=True, order=True)
class Piece:
    """A file, or a record of offsets without a file: skipped at the beginning, lost, or never those of messages.

    Attributes:
        topic, queue: Origin of its messages.
        span: Its range of offsets.
        path: Its name below the archive's folder.
        date: The day when they became visible, as ``2026-11-22``; empty in a record.
        size: Bytes of the file.
    """

    topic: str
    queue: int
    span: Span
    path: str
    date: str = ""
    size: int = 0

    @property
    def place(self) -> Queue:
        """The queue among those of all topics."""
        return self.topic, self.queue


class Chosen(NamedTuple):
    """An effective file, for its messages from an offset on."""

    piece: Piece
    first: int


def topic_folder(topic: str) -> str:
    """The folder of a topic, in the form that Spark and others read as a column."""
    return f"topic={quote(topic, safe='')}"


def file_name(topic: str, date: str, queue: int, span: Span) -> str:
    """The name of a file below the archive's folder."""
    return f"{topic_folder(topic)}/date={date}/{_of_queue(queue, span)}.parquet"


def note_name(why: Literal["skipped", "lost", "gap"], topic: str, queue: int, span: Span) -> str:
    """The name of a record; Spark and others ignore names that begin with an underscore."""
    return f"{topic_folder(topic)}/_{why}/{_of_queue(queue, span)}"


def topic_note(topic: str) -> str:
    """The name of the record with the topic's identity."""
    return f"{topic_folder(topic)}/_topic"


def _of_queue(queue: int, span: Span) -> str:
    return f"q{queue:04}-{span.first:020}-{span.end:020}"


def parse(path: str, size: int = 0) -> Piece | None:
    """Parses a name below the archive's folder; None for other files."""
    found = _FILE.fullmatch(path) or _ABSENT.fullmatch(path)
    if found is None:
        return None
    parts = found.groupdict()
    span = Span(int(parts["first"]), int(parts["end"]))
    return Piece(unquote(parts["topic"]), int(parts["queue"]), span, path, parts.get("date", ""), size)


def chosen(pieces: Iterable[Piece]) -> list[Chosen]:
    """The effective files, by topic, queue and offset: every message once, from the longest file with it."""
    result: list[Chosen] = []
    place: Queue | None = None
    at = 0
    for piece in sorted(pieces, key=lambda each: (each.place, each.span.first, -each.span.end, each.path)):
        if not piece.date:
            continue
        if piece.place != place:
            place, at = piece.place, 0
        if piece.span.end > at:
            result.append(Chosen(piece, max(at, piece.span.first)))
            at = piece.span.end
    return result


def spans_by_queue(pieces: Iterable[Piece]) -> dict[Queue, list[Span]]:
    """The covered ranges, by queue: ascending spans with gaps between them."""
    found: dict[Queue, list[Span]] = defaultdict(list)
    for piece in pieces:
        found[piece.place].append(piece.span)
    return {place: merged(found[place]) for place in sorted(found)}


def merged(spans: Iterable[Span]) -> list[Span]:
    """What some spans cover: ascending spans with gaps between them."""
    result: list[Span] = []
    for span in sorted(spans):
        if result and span.first <= result[-1].end:
            result[-1] = Span(result[-1].first, max(result[-1].end, span.end))
        else:
            result.append(span)
    return result


def missing(spans: Iterable[Span], wanted: Span) -> list[Span]:
    """The gaps of a span, ascending."""
    gaps: list[Span] = []
    at = wanted.first
    for first, end in spans:
        if at < min(first, wanted.end):
            gaps.append(Span(at, min(first, wanted.end)))
        at = max(at, end)
    if at < wanted.end:
        gaps.append(Span(at, wanted.end))
    return gaps


def cut(span: Span, length: int) -> list[Span]:
    """A span split at the multiples of a length, so that splitting the same messages again gives the same spans."""
    first, end = span
    marks = [first, *range((first // length + 1) * length, end, length), end]
    return [Span(low, high) for low, high in itertools.pairwise(marks) if low < high]
