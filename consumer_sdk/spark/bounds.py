"""Start and end of a reader: options with offsets and times."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeAlias

from consumer_sdk.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

EARLIEST, LATEST = -2, -1
"""Values for the ends of a queue in JSON offsets."""
TOPIC_IDS = "@topics"
"""In JSON offsets, instead of a topic: the identities of the topics."""

Bound: TypeAlias = "str | datetime | dict[str, dict[int, int | datetime]]"
"""A start or end: ``earliest``, ``latest``, a time, or an offset or a time for every queue of every topic."""


def bound_of(given: Mapping[str, str], which: str, topics: tuple[str, ...]) -> Bound | None:
    """The start or end, by `which` (``starting`` or ``ending``); None if left to the reader."""
    by_offset, by_time, by_times = f"{which}Offsets", f"{which}Timestamp", f"{which}OffsetsByTimestamp"
    named = [name for name in (by_offset, by_time, by_times) if given.get(name)]
    if len(named) > 1:
        msg = f"{named[0]} and {named[1]} are both given; leave one of them out"
        raise ConfigurationError(msg, field=named[1])
    if not named:
        return None
    if named == [by_time]:
        return time_of(by_time, given[by_time])
    if named == [by_times]:
        return _times(by_times, given[by_times], topics)
    offsets = given[by_offset]
    word = offsets.strip().lower()
    if word in {"earliest", "latest"}:
        if which == "ending" and word == "earliest":
            msg = "endingOffsets cannot be earliest: nothing would be read"
            raise ConfigurationError(msg, field=by_offset)
        return word
    return _offsets(by_offset, offsets, topics)


def time_of(option: str, text: str) -> datetime:
    """Parses a time of an option.

    Raises:
        ConfigurationError: It is malformed, or has no time zone.
    """
    try:
        if text.strip().isdigit():
            return datetime.fromtimestamp(int(text) / 1000, UTC)
        time = datetime.fromisoformat(text.strip())
    except (ValueError, OverflowError):
        msg = f"{option} {text!r} is no time; give milliseconds since 1970, or one such as 2026-01-31T12:00:00+00:00"
        raise ConfigurationError(msg, field=option) from None
    if time.tzinfo is None:
        msg = f"{option} {text!r} has no time zone; write one behind it, such as {text.strip()}+00:00"
        raise ConfigurationError(msg, field=option)
    return time


def _times(option: str, text: str, topics: tuple[str, ...]) -> dict[str, dict[int, int | datetime]]:
    try:
        read: dict[str, dict[int, int | datetime]] = {
            topic: {int(queue): time_of(option, str(time)) for queue, time in queues.items()}
            for topic, queues in json.loads(text).items()
        }
    except ConfigurationError:
        raise
    except (ValueError, TypeError, AttributeError):
        msg = f'{option} {text!r} cannot be read; write such as {{"orders": {{"0": 1767225600000}}}}, with milliseconds'
        raise ConfigurationError(msg, field=option) from None
    _check_queues(option, read, topics)
    return read


def _check_queues(option: str, read: Mapping[str, Mapping[int, object]], topics: tuple[str, ...]) -> None:
    for topic, queues in read.items():
        if topics and topic not in topics:
            msg = f"{option} names the topic {topic!r}, which is not among those to read"
            raise ConfigurationError(msg, field=option)
        if wrong := [queue for queue in queues if queue < 0]:
            msg = f"{option} names the queue {wrong[0]} of {topic!r}; queues are numbered from 0 on"
            raise ConfigurationError(msg, field=option)


def _offsets(option: str, text: str, topics: tuple[str, ...]) -> dict[str, dict[int, int | datetime]]:
    example = '{"orders": {"0": 17, "1": -2}}, with -2 for earliest and -1 for latest'
    try:
        read: dict[str, dict[int, int | datetime]] = {
            topic: {int(queue): int(offset) for queue, offset in queues.items()}
            for topic, queues in json.loads(text).items()
            if topic != TOPIC_IDS
        }
    except (ValueError, TypeError, AttributeError):
        msg = f"{option} {text!r} cannot be read; write earliest, latest, or such as {example}"
        raise ConfigurationError(msg, field=option) from None
    _check_queues(option, read, topics)
    for topic, queues in read.items():
        if wrong := [offset for offset in queues.values() if isinstance(offset, int) and offset < EARLIEST]:
            msg = f"{option} has {wrong[0]} for a queue of {topic!r}; write offsets from 0 on, as in {example}"
            raise ConfigurationError(msg, field=option)
    return read


def topic_ids_of(offsets: str | None) -> Mapping[str, str]:
    """The identities of the offsets' topics, if from a query's progress; invalid ones are refused elsewhere."""
    known = json.loads(offsets).get(TOPIC_IDS) if offsets and offsets.strip().startswith("{") else None
    return known if isinstance(known, dict) else {}
