"""Cells: the databases that one installation is spread over, and what is placed in them.

A topic with its messages, a consumer group and a sink are each in one cell. What is in no list of placements is in the
home database.
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from broker.domain.dead_letter import DEAD_LETTER_PREFIX
from broker.domain.limits import MAX_GROUP_NAME, MAX_SINK_NAME, MAX_TOPIC_NAME, NAME
from broker.errors import ConfigurationError, InvalidArgument, Refused

if TYPE_CHECKING:
    from collections.abc import Sequence

HOME = "home"
HOME_NUMBER = 0
LEAST_LOADED = "*"
"""Instead of a cell's name: the one with the fewest bytes."""
MOST_CELLS = 64
"""Also the step between two numbers that a cell gives to topics, queues, groups and leases: no two cells give the same.
"""
LATELY = 10 * 1_000_000
"""Microseconds after a move in which what is found in no cell may have been looked for in the wrong order."""
LONGEST_SHOWN, MOST_SHOWN = 120, 10
"""Characters of a name, and names, in an error: gRPC takes a few kilobytes of it."""
_NAME = re.compile("[a-z][a-z0-9_-]{0,29}")


class Placed(IntEnum):
    """Kinds of what is placed."""

    TOPIC = 1
    GROUP = 2
    SINK = 3


_LONGEST = {Placed.TOPIC: MAX_TOPIC_NAME, Placed.GROUP: MAX_GROUP_NAME, Placed.SINK: MAX_SINK_NAME}


class Name(NamedTuple):
    """The name of what is placed."""

    kind: Placed
    text: str

    def __str__(self) -> str:
        """As in messages: `topic 'orders'`."""
        return f"{self.kind.name.lower()} {self.text[:LONGEST_SHOWN]!r}"

    @property
    def allowed(self) -> bool:
        """Whether anything can have this name."""
        return len(self.text) <= _LONGEST[self.kind] and NAME.fullmatch(self.text) is not None


def name_of_topic(name: str) -> Name:
    """What is placed for a topic: dead letters are where their group is."""
    if name.startswith(DEAD_LETTER_PREFIX):
        return Name(Placed.GROUP, name.removeprefix(DEAD_LETTER_PREFIX))
    return Name(Placed.TOPIC, name)


class Placement(NamedTuple):
    """Where something is: the number of its cell, and of the move that takes it away (None: none does)."""

    cell: int
    move: int | None = None


def given_by(number: int) -> int:
    """The number of the cell that gave a number to a lease; of one from before there were cells it is any."""
    return (number - 1) % MOST_CELLS


def parse_cells(text: str) -> dict[str, str]:
    """The URLs of the databases beside the home database, by the names of the cells.

    Args:
        text: of the setting `cells`: name=URL, with spaces between them.

    Raises:
        ConfigurationError: it has another form.
    """
    found: dict[str, str] = {}
    for part in text.split():
        name, separator, url = part.partition("=")
        if not separator or not url or not _NAME.fullmatch(name) or name == HOME:
            # Not shown: it may be a URL with a password.
            raise ConfigurationError(
                "cells is name=URL with spaces between them; a name has up to 30 lower-case letters, digits, - and _, a"
                f" letter first, and is not {HOME}.",
                field="cells",
            )
        if name in found:
            raise ConfigurationError(f"cells names {name!r} twice.", field="cells")
        if url.partition(":")[0].partition("+")[0] not in {"mysql", "mariadb"}:
            raise ConfigurationError(f"The cell {name!r} must be a database of MySQL or MariaDB.", field="cells")
        found[name] = url
    if len(found) >= MOST_CELLS:
        raise ConfigurationError(f"cells names {len(found)} databases; {MOST_CELLS - 1} are allowed.", field="cells")
    return found


def check_only(name: str) -> None:
    """Refuses another cell than home, for a broker that has no others.

    Raises:
        InvalidArgument: the name is another one.
    """
    if name not in {"", HOME, LEAST_LOADED}:
        raise InvalidArgument(
            f"There is no cell {name[:80]!r}: this broker has one database, see its setting `cells`.", field="cell"
        )


def listed(names: Sequence[object]) -> str:
    """Some names in an error or a finding, and how many more there are."""
    said = ", ".join(map(str, names[:MOST_SHOWN]))
    return said if len(names) <= MOST_SHOWN else f"{said} and {len(names) - MOST_SHOWN} more"


def apart(
    names: Sequence[object], remedy: str = "Move them together with `halfmq cells move`, or use one call for each cell."
) -> Refused:
    """The refusal of a call for what is in several cells, and what to do."""
    return Refused(
        f"These are in different cells, whose databases have no transaction in common: {listed(names)}. {remedy}",
        reason="TOPICS_APART",
        field="topic",
    )
