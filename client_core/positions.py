"""Start positions: an end of a queue, a time, an offset."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, TypeAlias

from client_core.arguments import refuse
from client_core.times import as_timestamp, read_time
from halfmq.v1 import message_pb2 as pb

__all__ = ["StartPosition", "position_of", "position_to_wire"]

StartPosition: TypeAlias = Literal["earliest", "latest"] | datetime
"""The first message kept, the next one released, or the first that became visible at a time or later."""

_ENDS = {"earliest": pb.BOUNDARY_EARLIEST, "latest": pb.BOUNDARY_LATEST}


def position_to_wire(name: str, place: object, *, offsets: bool = False) -> pb.Position:
    """Makes the wire form of a position.

    Args:
        name: The argument, as its error is to name it.
        place: "earliest", "latest", an aware datetime, or an offset.
        offsets: Whether an offset is allowed, because one queue is named.

    Raises:
        ConfigurationError: It is none of these.
    """
    if isinstance(place, datetime):
        if place.utcoffset() is None:
            refuse(name, "is a time with a time zone, such as datetime.now(UTC) or value.astimezone()", place)
        return pb.Position(time=as_timestamp(name, place))
    if isinstance(place, str) and place in _ENDS:
        return pb.Position(boundary=_ENDS[place])
    if isinstance(place, int) and not isinstance(place, bool):
        if not offsets:
            refuse(name, 'is "earliest", "latest" or a datetime; an offset needs one queue to be named', place)
        if not 0 <= place < 2**63:
            refuse(name, "is an offset, 0 or more", place)
        return pb.Position(offset=place)
    refuse(name, f'is "earliest", "latest"{", a datetime or an offset" if offsets else " or a datetime"}', place)


def position_of(found: pb.Position) -> StartPosition | None:
    """Reads the wire form of a start position; None if unset."""
    if found.WhichOneof("position") == "time":
        return read_time(found.time)
    if found.boundary == pb.BOUNDARY_EARLIEST:
        return "earliest"
    return "latest" if found.boundary == pb.BOUNDARY_LATEST else None
