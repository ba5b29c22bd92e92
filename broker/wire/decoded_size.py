"""Estimates the memory of a decoded request before decoding it.

An empty nested message takes two bytes on the wire, and hundreds as a decoded Python object; compressed, a million of
them are a few kilobytes. So the fields are counted before decoding, on the wire format, and the count stops at the
limit.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, TypeAlias

from broker.errors import InvalidArgument

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor

NOT_WEIGHED = 64 * 1024
"""Bytes of a request that is decoded without a check: it cannot become large."""
MOST = 256 * 1024 * 1024
"""Bytes that a request's fields may take in addition to their contents."""
_FIELD, _MESSAGE = 100, 200
_LITTLE, _PER_BYTE = 128, 16
_LARGE = 4 * 1024 * 1024
_TOO_MANY = "The request has too many fields and items for one; send it in several."
_WELL_KNOWN = "google.protobuf"
_VARINT, _FIXED64, _BYTES, _START, _END, _FIXED32 = range(6)
_MORE = 0x80
_LONGEST_VARINT = 64

# By number of the field: a nested message, whether it has nested ones, and the memory per byte of it.
_Plan: TypeAlias = "dict[int, tuple[Descriptor, bool, int]]"


@cache
def _plan(kind: Descriptor) -> _Plan:
    """The fields of a message that are messages."""
    return {
        field.number: (inner, _nested(inner), 0 if _small(inner) else _PER_BYTE)
        for field in kind.fields
        if (inner := field.message_type)
    }


def _nested(kind: Descriptor) -> bool:
    inner = [field.message_type for field in kind.fields if field.message_type is not None]
    return not all(map(_small, inner))


def _small(kind: Descriptor) -> bool:
    """Whether it contains no lists."""
    return bool(kind.GetOptions().map_entry) or kind.file.package == _WELL_KNOWN


def decoded_size(raw: bytes, kind: Descriptor) -> int:
    """Approximate bytes that a request's fields will take in this process, in addition to their contents.

    Nested messages without further nesting are examined in large requests only. Malformed requests are left to the
    decoder.

    Raises:
        InvalidArgument: it exceeds the limit.
    """
    total = 0
    look_from = _LITTLE if len(raw) > _LARGE else len(raw)
    open_ones = [(_plan(kind), 0, len(raw))]
    try:
        while open_ones:
            plan, at, end = open_ones.pop()
            while at < end:
                total += _FIELD
                if total > MOST:
                    raise InvalidArgument(_TOO_MANY, field="request", reason="REQUEST_TOO_LARGE")
                tag, at = _varint(raw, at)
                wire = tag & 7
                if wire == _BYTES:
                    length, at = _varint(raw, at)
                    if found := plan.get(tag >> 3):
                        total += _MESSAGE
                        inner, nested, per_byte = found
                        if nested or length > look_from:
                            open_ones.append((_plan(inner), at, min(at + length, end)))
                        elif look_from == _LITTLE:
                            total += length * per_byte
                    at += length
                elif wire == _VARINT:
                    _, at = _varint(raw, at)
                elif wire == _FIXED64:
                    at += 8
                elif wire == _FIXED32:
                    at += 4
                elif wire not in {_START, _END}:
                    return total
    except IndexError:
        # It ends in the middle of a field.
        return total
    return total


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    byte = raw[at]
    if byte < _MORE:
        return byte, at + 1
    value = shift = 0
    while byte >= _MORE:
        value |= (byte & ~_MORE) << shift
        shift += 7
        if shift > _LONGEST_VARINT:
            raise IndexError
        at += 1
        byte = raw[at]
    return value | byte << shift, at + 1
