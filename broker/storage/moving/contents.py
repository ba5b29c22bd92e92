"""What moves together: names, and the numbers of their rows in the cell where they are.

A set of names is closed if none of its groups reads a topic outside of it, no group outside reads one of its topics,
and no epoch that is being written, or transaction without a verdict, has messages both inside and outside.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from broker.domain.cell import Name, Placed, name_of_topic
from broker.domain.dead_letter import dead_letter_topic
from broker.storage.engine.statements import marks
from broker.storage.moving.refusals import MoveRefused, Why

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from broker.storage.engine.session import Session

MOST_NAMES = 10_000
"""Names that move together, at most."""

_READERS = (
    "SELECT DISTINCT COALESCE(whole.name, own.name) FROM queue q JOIN group_progress p ON p.queue_id = q.queue_id"
    " JOIN consumer_group own ON own.group_id = p.group_id"
    " LEFT JOIN consumer_group whole ON whole.group_id = own.parent_id WHERE q.topic_id IN ({ids})"
)
_FILTERING = (
    "SELECT DISTINCT g.name FROM group_filter f JOIN consumer_group g ON g.group_id = f.group_id"
    " WHERE f.topic_id IN ({ids})"
)
_READ = (
    "SELECT DISTINCT t.name FROM group_progress p JOIN queue q ON q.queue_id = p.queue_id"
    " JOIN topic t ON t.topic_id = q.topic_id WHERE t.deleted_at IS NULL AND p.group_id IN ({ids})"
)
_FILTERED = (
    "SELECT DISTINCT t.name FROM group_filter f JOIN topic t ON t.topic_id = f.topic_id"
    " WHERE t.deleted_at IS NULL AND f.group_id IN ({ids})"
)
_WRITING = (
    "SELECT DISTINCT s.name FROM half_message h JOIN sink_transaction w ON w.transaction_id = h.transaction_id"
    " JOIN sink s ON s.sink_id = w.sink_id WHERE h.topic_id IN ({ids})"
)
_WRITTEN = (
    "SELECT DISTINCT t.name FROM sink_transaction w JOIN half_message h ON h.transaction_id = w.transaction_id"
    " JOIN topic t ON t.topic_id = h.topic_id WHERE t.deleted_at IS NULL AND w.sink_id IN ({ids})"
)
# Reads all half messages, which are few.
_TRANSACTION_MATES = (
    "SELECT DISTINCT t.name FROM half_message own JOIN half_message other ON other.transaction_id = own.transaction_id"
    " JOIN topic t ON t.topic_id = other.topic_id WHERE t.deleted_at IS NULL AND own.topic_id IN ({ids})"
)


@dataclass(slots=True)
class Contents:
    """What moves; numbers by name.

    Attributes:
        names: what is placed. The topic of a group's dead letters has no place of its own.
        topics: with those of dead letters.
        queues: their queues.
        groups: consumer groups.
        members: the groups' numbers, and those of their members.
        sinks: sinks.
    """

    names: list[Name]
    topics: dict[str, int] = field(default_factory=dict)
    queues: list[int] = field(default_factory=list)
    groups: dict[str, int] = field(default_factory=dict)
    members: list[int] = field(default_factory=list)
    sinks: dict[str, int] = field(default_factory=dict)

    @property
    def topic_ids(self) -> list[int]:
        """The topics' numbers, in order."""
        return sorted(self.topics.values())


def texts(names: Iterable[Name], kind: Placed) -> list[str]:
    """The names of one kind, in order."""
    return sorted({name.text for name in names if name.kind is kind})


def topic_names(names: Iterable[Name]) -> list[str]:
    """The topics of names, with those of dead letters."""
    names = list(names)
    return sorted({*texts(names, Placed.TOPIC), *map(dead_letter_topic, texts(names, Placed.GROUP))})


def look_up(session: Session, names: Collection[Name]) -> Contents:
    """Finds the rows of names; what is not there is left out."""
    found = Contents(sorted(names))
    found.topics = dict(
        session.fetch_in("SELECT name, topic_id FROM topic WHERE deleted_at IS NULL AND name", topic_names(names))
    )
    found.queues = [row[0] for row in session.fetch_in("SELECT queue_id FROM queue WHERE topic_id", found.topic_ids)]
    found.queues.sort()
    found.groups = dict(
        session.fetch_in(
            "SELECT name, group_id FROM consumer_group WHERE parent_id IS NULL AND name", texts(names, Placed.GROUP)
        )
    )
    heads = sorted(found.groups.values())
    found.members = sorted(
        [*heads, *[row[0] for row in session.fetch_in("SELECT group_id FROM consumer_group WHERE parent_id", heads)]]
    )
    found.sinks = dict(session.fetch_in("SELECT name, sink_id FROM sink WHERE name", texts(names, Placed.SINK)))
    return found


def missing(contents: Contents) -> list[Name]:
    """Names that nothing was found for; a group of which only the dead letters are left is there."""
    return [
        name
        for name in contents.names
        if name.text
        not in {
            Placed.TOPIC: contents.topics,
            Placed.GROUP: {**contents.groups, **_dead_letters(contents)},
            Placed.SINK: contents.sinks,
        }[name.kind]
    ]


def _dead_letters(contents: Contents) -> dict[str, int]:
    named = {name_of_topic(topic): topic_id for topic, topic_id in contents.topics.items()}
    return {name.text: topic_id for name, topic_id in named.items() if name.kind is Placed.GROUP}


def needed(session: Session, contents: Contents) -> set[Name]:
    """Names outside of a set that have to move with it."""
    found = {Name(Placed.GROUP, text) for text in _some(session, (_READERS, _FILTERING), contents.topic_ids)}
    found |= {name_of_topic(text) for text in _some(session, (_READ, _FILTERED), contents.members)}
    found |= {Name(Placed.SINK, text) for text in _some(session, (_WRITING,), contents.topic_ids)}
    found |= {name_of_topic(text) for text in _some(session, (_WRITTEN,), sorted(contents.sinks.values()))}
    return found - set(contents.names)


def shared_in_transactions(session: Session, contents: Contents) -> set[Name]:
    """Topics outside of a set that have messages in transactions without a verdict with some inside."""
    found = {name_of_topic(text) for text in _some(session, (_TRANSACTION_MATES,), contents.topic_ids)}
    return found - set(contents.names)


def _some(session: Session, queries: Iterable[str], ids: Sequence[int]) -> set[str]:
    if not ids:
        return set()
    return {row[0] for query in queries for row in session.fetch(query.format(ids=marks(ids)), ids)}


def closed(session: Session, names: Collection[Name], *, with_others: bool) -> Contents:
    """What moves, with what has to move with it.

    Args:
        session: for reading, in the cell where it is.
        names: what is to move.
        with_others: whether to add what they need; otherwise that is refused.

    Raises:
        MoveRefused: something is not there, or missing in the set, or it is too large.
    """
    wanted = set(names)
    while True:
        contents = look_up(session, wanted)
        if absent := missing(contents):
            raise MoveRefused(
                f"There is no {absent[0]} in the cell where it is placed; nothing was moved.",
                Why.NOT_THERE,
            )
        others = needed(session, contents)
        if not others:
            return contents
        if not with_others:
            raise not_closed(others)
        wanted |= others
        if len(wanted) > MOST_NAMES:
            raise MoveRefused(
                f"More than {MOST_NAMES} topics, groups and sinks hang together; these are moved in no other way than"
                " with the whole database.",
                Why.TOO_MANY_NAMES,
            )


def not_closed(others: Iterable[Name]) -> MoveRefused:
    """The refusal of a set that lacks some names."""
    return MoveRefused(
        f"These have to move with them: {', '.join(map(str, sorted(others)))}. Name them, or add --with-others.",
        Why.MOVED_APART,
    )
