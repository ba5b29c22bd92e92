"""Redrive: delivers dead letters to their group again.

Nothing is copied: the group gets a lease of the original message, without effect on other groups. Each dead letter is
redriven once, recorded in the same transaction; a message that fails again becomes another dead letter.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from broker.domain.dead_letter import Origin, dead_letter_topic, origin_of, without_origin
from broker.domain.filters.pacing import Steps
from broker.domain.lease import NEVER, Lease, runs
from broker.errors import NotFound, Refused
from broker.ports.groups import DeadLetterPage, DeadLetterSearch, FoundDeadLetter, Redriven
from broker.ports.queries import TimelineKind
from broker.storage.delivery import delivery_events, leases, message_groups
from broker.storage.delivery.delivery_events import Event
from broker.storage.engine.statements import marks
from broker.storage.groups import groups
from broker.storage.log import republish
from broker.storage.log.fitting import pieces_of, read_offsets
from broker.storage.log.ranges import candidates, candidates_in, whole_ones

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.domain.group import ConsumerGroup
    from broker.domain.message import Candidate
    from broker.domain.topic import Topic
    from broker.storage.catalog.directory import Directory
    from broker.storage.engine.session import Session

CHUNK = 256
MOST_EXAMINED = 4096
"""Dead letters that are looked at for a page; one for which few of them match ends there."""


def find(session: Session, search: DeadLetterSearch, directory: Directory) -> DeadLetterPage:
    """Dead letters of a group, oldest first, from an offset on.

    Raises:
        NotFound: the group has no dead letter topic.
        Refused: it has another one than before.
        StoredBodyBroken: the body of the first one cannot be unpacked.
    """
    topic, queue_id, low, high = letters_of(session, search.group, directory)
    if _gone(search, topic):
        raise Refused(
            f"The dead letter topic of {search.group.name!r} was deleted and created again; begin with the first page.",
            reason="TOPIC_REPLACED",
            field="page_token",
        )
    gaps = topic.gaps_of(queue_id)
    first = gaps.resume(max(search.first, low))
    until = gaps.run_end(first, min(high, first + MOST_EXAMINED))
    chosen: list[Candidate] = []
    size = 0
    steps = Steps()
    while first < until and len(chosen) < search.limit and size < search.max_bytes and not steps.spent:
        some, following = _wanted(session, topic, queue_id, first, min(CHUNK, until - first), search, steps)
        for candidate in some:
            if chosen and (len(chosen) == search.limit or size + candidate.size > search.max_bytes):
                return _page(session, topic, queue_id, chosen, candidate.offset)
            chosen.append(candidate)
            size += candidate.size
        first = following
    return _page(session, topic, queue_id, chosen, first if gaps.resume(first) < high else None)


def letters_of(session: Session, group: ConsumerGroup, directory: Directory) -> tuple[Topic, int, int, int]:
    """A group's dead letter topic, its queue, and the first and the next offset in it.

    Raises:
        NotFound: there is none.
    """
    query = "SELECT min_offset, next_offset FROM queue WHERE queue_id = ? AND deleted_at IS NULL"
    while topic := directory.by_name(session, dead_letter_topic(group.name)):
        row = session.fetch_one(query, (topic.queue_ids[0],))
        if row is not None:
            return topic, topic.queue_ids[0], row[0], row[1]
        # Another broker deleted the one in this broker's cache; there may be another one by now.
        directory.forget(topic)
    raise NotFound(
        f"The group {group.name!r} has no dead letter topic: it was deleted.",
        reason="TOPIC_NOT_FOUND",
        field="group",
    )


def _wanted(
    session: Session, topic: Topic, queue_id: int, first: int, count: int, search: DeadLetterSearch, steps: Steps
) -> tuple[list[Candidate], int]:
    """The matching ones of some dead letters, and where to continue."""
    chosen: list[Candidate] = []
    for candidate in candidates(topic.name, 0, session.execute_all([candidates_in(queue_id, first, count)])[0].rows):
        if search.offsets is not None and candidate.offset not in search.offsets:
            continue
        if search.wanted is not None and steps.spent:
            return chosen, candidate.offset
        if search.wanted is None or steps.judge(search.wanted, candidate):
            chosen.append(candidate)
    return chosen, first + count


def judged(session: Session, search: DeadLetterSearch, directory: Directory) -> DeadLetterSearch:
    """The next part of a search, evaluated: the same dead letters by their offsets.

    Raises:
        NotFound: the group has no dead letter topic.
    """
    topic, queue_id, low, high = letters_of(session, search.group, directory)
    gaps = topic.gaps_of(queue_id)
    first = gaps.resume(max(search.first, low))
    count = 0 if _gone(search, topic) else max(0, min(CHUNK, gaps.run_end(first, _end(search, high)) - first))
    chosen, following = _wanted(session, topic, queue_id, first, count, search, Steps())
    offsets = frozenset([candidate.offset for candidate in chosen])
    # What was evaluated are messages of this topic.
    topic_id = topic.topic_id if search.topic_id is None else search.topic_id
    return replace(search, first=first, wanted=None, offsets=offsets, until=following, topic_id=topic_id)


def _end(search: DeadLetterSearch, high: int) -> int:
    return high if search.end is None else min(high, search.end)


def _gone(search: DeadLetterSearch, topic: Topic) -> bool:
    """Whether another topic has its name by now."""
    return search.topic_id not in {None, topic.topic_id}


def _redriven_before(session: Session, queue_id: int, offsets: Sequence[int]) -> dict[int, int]:
    if not offsets:
        return {}
    found = session.fetch(
        f"SELECT log_offset, redriven_at FROM redriven WHERE queue_id = ? AND log_offset IN ({marks(offsets)})",
        (queue_id, *offsets),
    )
    return dict(found)


def _page(
    session: Session, topic: Topic, queue_id: int, chosen: Sequence[Candidate], following: int | None
) -> DeadLetterPage:
    offsets = [candidate.offset for candidate in chosen]
    redriven = _redriven_before(session, queue_id, offsets)
    found = read_offsets(session, topic.name, 0, queue_id, offsets) if offsets else []
    messages = whole_ones(found)
    if len(messages) < len(found):
        following = found[len(messages)].offset
    entries = [
        FoundDeadLetter(message, origin_of(message.properties), redriven.get(message.offset)) for message in messages
    ]
    return DeadLetterPage(entries, following, topic.topic_id)


@dataclass(frozen=True, slots=True)
class _Letter:
    candidate: Candidate
    origin: Origin
    topic: Topic


def redrive(session: Session, search: DeadLetterSearch, now: int, directory: Directory, *, republish: bool) -> Redriven:
    """Redrives some dead letters, from an offset on; returns how many, and where to continue.

    Args:
        session: a transaction.
        search: the group and its dead letters, evaluated before; `limit` is ignored.
        now: the time.
        directory: the topics.
        republish: append a copy to the topic if the original is past retention.

    Raises:
        NotFound: the group or its dead letter topic was deleted.
    """
    group = search.group
    _lock(session, group)
    topic, queue_id, low, high = letters_of(session, group, directory)
    if _gone(search, topic):
        return Redriven(end=0, topic_id=search.topic_id)
    # What fails again meanwhile is behind this.
    high = _end(search, high)
    gaps = topic.gaps_of(queue_id)
    first = gaps.resume(max(search.first, low))
    until = high if search.until is None else min(high, search.until)
    count = min(CHUNK, gaps.run_end(first, until) - first)
    if count <= 0:
        return Redriven(
            total=gaps.count(low, high),
            following=first if first < high else None,
            end=high,
            topic_id=topic.topic_id,
        )
    chosen, _ = _wanted(session, topic, queue_id, first, count, search, Steps())
    before = _redriven_before(session, queue_id, [candidate.offset for candidate in chosen])
    origins = [origin_of(candidate.properties) for candidate in chosen]
    # Another broker may have deleted their original topics.
    directory.forget_names({origin.topic for origin in origins if origin})
    letters = []
    for candidate, origin in zip(chosen, origins, strict=True):
        home = directory.by_name(session, origin.topic) if origin else None
        if origin and home and candidate.offset not in before and origin.queue_no < len(home.queue_ids):
            letters.append(_Letter(candidate, origin, home))
    again, gone = _deliver_again(session, group, letters, now)
    may = search.may_republish
    allowed = [letter for letter in gone if may is None or may(letter.topic.name)] if republish else []
    anew = _republish(session, topic, queue_id, allowed, now) if allowed else []
    done = sorted([*again, *anew], key=lambda letter: letter.candidate.offset)
    if done:
        noted = [(queue_id, letter.candidate.offset, now) for letter in done]
        session.insert("redriven", "queue_id, log_offset, redriven_at", noted)
    following = first + count
    return Redriven(
        examined=count,
        redriven=len(again),
        republished=len(anew),
        left=len(chosen) - len(done),
        total=gaps.count(low, high),
        following=following if following < high else None,
        end=high,
        topic_id=topic.topic_id,
    )


def was_done(session: Session, search: DeadLetterSearch, before: Redriven, now: int, directory: Directory) -> bool:
    """Whether a redrive whose COMMIT got no answer took effect, given its result.

    Raises:
        NotFound: the group or its dead letter topic was deleted.
    """
    _lock(session, search.group)
    _, queue_id, _, high = letters_of(session, search.group, directory)
    # Uses the primary key; messages redriven by another call have another time.
    noted = session.fetch(
        "SELECT COUNT(*) FROM redriven WHERE queue_id = ? AND log_offset >= ? AND log_offset < ? AND redriven_at = ?",
        (queue_id, search.first, high if before.following is None else before.following, now),
    )
    return bool(noted[0][0])


def _lock(session: Session, group: ConsumerGroup) -> None:
    """Serialises redrives of a group, so that recorded ones do not change."""
    locked = session.fetch(
        "SELECT 1 FROM consumer_group WHERE group_id = ?" + session.dialect.for_update, (group.group_id,)
    )
    if not locked:
        raise NotFound(f"There is no consumer group {group.name!r}.", reason="GROUP_NOT_FOUND", field="group")


def _deliver_again(
    session: Session, group: ConsumerGroup, letters: Sequence[_Letter], now: int
) -> tuple[list[_Letter], list[_Letter]]:
    """Creates leases of the original messages; returns the redriven letters, and those past retention."""
    members = {member.client_id: member for member in groups.members(session, group)} or {"": group}
    by_place: dict[tuple[int, int], list[_Letter]] = defaultdict(list)
    gone = []
    for letter in letters:
        member = members.get(letter.origin.client_id)
        if member is None:
            gone.append(letter)
        else:
            by_place[(member.group_id, letter.topic.queue_ids[letter.origin.queue_no])].append(letter)
    again: list[_Letter] = []
    for (group_id, queue_id), some in sorted(by_place.items()):
        kept = _originals(session, queue_id, some)
        gone += [letter for letter in some if letter not in kept]
        again += _lease(session, group_id, queue_id, kept, now)
    return again, gone


def _originals(session: Session, queue_id: int, letters: Sequence[_Letter]) -> list[_Letter]:
    """Those whose original still exists; a re-created topic has other messages at the same offsets."""
    offsets = sorted({letter.origin.offset for letter in letters})
    found = session.fetch(
        "SELECT log_offset, transaction_id, position FROM message"
        f" WHERE queue_id = ? AND log_offset IN ({marks(offsets)})",
        (queue_id, *offsets),
    )
    identity = {row[0]: row[1:] for row in found}
    return [
        letter
        for letter in letters
        if identity.get(letter.origin.offset) == (letter.candidate.transaction_id, letter.candidate.position)
    ]


def _lease(session: Session, group_id: int, queue_id: int, letters: Sequence[_Letter], now: int) -> list[_Letter]:
    locked = session.fetch(
        "SELECT next_offset FROM group_progress WHERE group_id = ? AND queue_id = ?" + session.dialect.for_update,
        (group_id, queue_id),
    )
    if not locked or not letters:
        return []
    # The group was moved back: it will be delivered without a redrive.
    passed = {letter.origin.offset: letter for letter in letters if letter.origin.offset < locked[0][0]}
    loose = sorted(offset for offset, letter in passed.items() if letter.candidate.message_group is None)
    ordered: dict[str, list[int]] = defaultdict(list)
    for offset in sorted(passed):
        message_group = passed[offset].candidate.message_group
        if message_group is not None:
            ordered[message_group].append(offset)
    busy = message_groups.groups_with_leases(session, group_id, queue_id, ordered) if ordered else set()
    new = [
        Lease(
            0, group_id, queue_id, first, count, leases.new_token(now), 0, now, last_error=passed[first].origin.reason
        )
        for first, count in runs(loose)
    ]
    for message_group, offsets in ordered.items():
        for index, offset in enumerate(offsets):
            # One lease each: their offsets may be far apart.
            waits = message_group in busy or index > 0
            new.append(
                Lease(
                    0,
                    group_id,
                    queue_id,
                    offset,
                    1,
                    leases.new_token(now),
                    0,
                    NEVER if waits else now,
                    last_error=passed[offset].origin.reason,
                    message_group=message_group,
                )
            )
    events = [
        Event.at(TimelineKind.REDRIVEN, group_id, queue_id, [offset], attempt=0, client_id=None, happened_at=now)
        for offset in passed
    ]
    if new:
        session.insert("lease", leases.INSERT_COLUMNS, [leases.values(lease) for lease in new])
        session.execute_all(delivery_events.recording(session, events))
    return list(letters)


def _republish(
    session: Session, dead_letters: Topic, queue_id: int, letters: Sequence[_Letter], now: int
) -> list[_Letter]:
    by_queue: dict[int, list[_Letter]] = defaultdict(list)
    broken: set[int] = set()
    for letter in letters:
        by_queue[letter.topic.queue_ids[letter.origin.queue_no]].append(letter)
    for target, some in sorted(by_queue.items()):
        offsets = sorted(letter.candidate.offset for letter in some)
        for piece in pieces_of(session, queue_id, offsets):
            messages = read_offsets(session, dead_letters.name, 0, queue_id, piece)
            broken.update(message.offset for message in messages if message.broken)
            copied = [(each, without_origin(each.properties)) for each in messages if not each.broken]
            if copied:
                republish.append(session, some[0].topic, target, copied, now)
    return [letter for letter in letters if letter.candidate.offset not in broken]
