"""Filters by tag, in RocketMQ's form: `*`, or `A || B || C`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from broker.domain.filters.fault import BLANKS, Fault
from broker.domain.limits import MAX_TAG_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.domain.filters.subject import Subject

EVERYTHING = "*"
MAX_COUNT = 2048
"""Tags of a list."""
_SEPARATOR = "||"
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f|]")


def compile_tags(expression: str) -> Callable[[Subject], bool]:
    """A function that returns whether a message has one of the tags.

    Raises:
        Fault: the expression is not `*` and not a list of tags.
    """
    if expression.strip(BLANKS) == EVERYTHING:
        return lambda _: True
    tags = set()
    at = 0
    for piece in expression.split(_SEPARATOR):
        if piece.strip(BLANKS):  # As in RocketMQ, an empty text between two separators is ignored.
            tags.add(_tag(piece, at))
            if len(tags) > MAX_COUNT:
                raise Fault(at, f"it has more than {MAX_COUNT} tags, and so many are allowed")
        at += len(piece) + len(_SEPARATOR)
    if not tags:
        raise Fault(0, "a tag is missing")
    wanted = frozenset(tags)
    return lambda subject: subject.tag in wanted


def _tag(piece: str, at: int) -> str:
    tag = piece.strip(BLANKS)
    at += piece.index(tag)
    forbidden = _FORBIDDEN.search(tag)
    if forbidden and forbidden[0] == "|":
        raise Fault(at + forbidden.start(), "tags are separated by '||', and none contains a '|'")
    if forbidden:
        raise Fault(at + forbidden.start(), f"the control character {forbidden[0]!r} cannot be in a tag")
    if tag == EVERYTHING:
        raise Fault(at, "'*' stands alone, for all messages; it cannot be one of several tags")
    # A text from Python may contain lone surrogates, which cannot be encoded.
    size = len(tag.encode(errors="surrogatepass"))
    if size > MAX_TAG_BYTES:
        raise Fault(at, f"this tag has {size} bytes; {MAX_TAG_BYTES} are allowed")
    return tag
