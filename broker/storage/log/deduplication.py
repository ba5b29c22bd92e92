"""Deduplication: a topic accepts one message with the same dedup_key within its window.

The first message, sent or prepared, owns the key until the window has passed. Keys are claimed in one INSERT that skips
existing ones; if it inserts fewer rows than given, another message was first, and all owners are read. A key is claimed
in the same database transaction that stores its message, and released in the one that drops it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from broker.domain.ids import format_id
from broker.domain.keys import dedup_hash
from broker.domain.limits import same_key_twice
from broker.domain.place import Recalled
from broker.domain.transaction import TransactionState
from broker.errors import AlreadyExists, BrokerError
from broker.ports.log import Duplicate
from broker.storage.engine.statements import Statement, rows_of, selection
from broker.storage.log.outcomes import UNKNOWN, RecordedOutcome, recorded_outcomes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from broker.ports.log import SendWork
    from broker.ports.transactions import Half
    from broker.storage.engine.session import Session

Key: TypeAlias = tuple[int, bytes]
"""Topic id and hash of a dedup_key."""

_ATTEMPTS = 20


class Reservation(NamedTuple):
    """A message's claim to a key."""

    topic_id: int
    dedup_hash: bytes
    transaction_id: bytes
    position: int
    expires_at: int

    @property
    def key(self) -> Key:
        """The claimed key."""
        return self.topic_id, self.dedup_hash


class _Owner(NamedTuple):
    transaction_id: bytes
    position: int
    expires_at: int


@dataclass(slots=True)
class _Owners:
    """Owners of keys.

    Attributes:
        owners: by key.
        standings: of the transactions that own contested keys.
    """

    owners: dict[Key, _Owner]
    outcomes: dict[bytes, RecordedOutcome]

    def is_stale(self, reservation: Reservation, now: int) -> bool:
        """Whether the key's owner is stale."""
        owner = self.owners.get(reservation.key)
        if owner is None:
            return False
        if owner.expires_at <= now or owner.transaction_id == reservation.transaction_id:
            return owner.expires_at <= now
        # Left by a repeated Prepare that was overtaken by the verdict.
        standing = self.outcomes.get(owner.transaction_id, UNKNOWN)
        place = standing.place(owner.position)
        return standing.state is TransactionState.ROLLED_BACK or isinstance(place, Recalled)

    def taking_over(self, reservation: Reservation) -> Statement:
        """Transfers a stale key to another message."""
        before = self.owners[reservation.key]
        return Statement(
            "UPDATE dedup_key SET transaction_id = ?, position = ?, expires_at = ?"
            " WHERE topic_id = ? AND dedup_hash = ? AND transaction_id = ?",
            (*reservation[2:], *reservation.key, before.transaction_id),
        )


def _reserve(session: Session, wanted: Sequence[Reservation], now: int) -> _Owners:
    """Claims keys; returns their owners."""
    wanted = sorted(wanted)
    for _ in range(_ATTEMPTS):
        found = _Owners(_owners(session, wanted), {})
        others = {
            owner.transaction_id
            for reservation in wanted
            if (owner := found.owners.get(reservation.key)) and owner.transaction_id != reservation.transaction_id
        }
        found.outcomes = recorded_outcomes(session, others) if others else {}
        free = [reservation for reservation in wanted if reservation.key not in found.owners]
        stale = [reservation for reservation in wanted if found.is_stale(reservation, now)]
        if not free and not stale:
            return found
        new = (
            session.insertion("dedup_key", ", ".join(Reservation._fields), free, keep_existing="topic_id")
            if free
            else []
        )
        answers = session.execute_all([*new, *[found.taking_over(reservation) for reservation in stale]])
        if sum(answer.changed for answer in answers) == len(free) + len(stale):
            found.owners |= {reservation.key: _Owner(*reservation[2:]) for reservation in (*free, *stale)}
            return found
    raise RuntimeError("dedup keys change hands faster than they can be looked at")


def _owners(session: Session, wanted: Iterable[Reservation]) -> dict[Key, _Owner]:
    hashes: dict[int, list[bytes]] = defaultdict(list)
    for reservation in wanted:
        hashes[reservation.topic_id].append(reservation.dedup_hash)
    # By primary key, a range for each topic.
    statements = [
        statement
        for topic_id, own in hashes.items()
        for statement in selection(
            "SELECT topic_id, dedup_hash, transaction_id, position, expires_at"
            f" FROM dedup_key{session.dialect.by_key} WHERE topic_id = {topic_id:d} AND dedup_hash",
            own,
        )
    ]
    return {(row[0], row[1]): _Owner(*row[2:]) for row in rows_of(session.execute_all(statements))}


def reserve_for_send(
    session: Session, work: Collection[SendWork], now: int, windows: Mapping[int, int]
) -> tuple[dict[bytes, Duplicate | BrokerError], dict[bytes, bytes], list[bytes]]:
    """Claims the keys of ordinary messages, as far as they are free.

    Returns:
        Outcomes of the messages whose key another one owns; for those whose key an earlier one of this batch owns, the
        id of that one; and the ids of those that owned their key before.
    """
    wanted: dict[Key, Reservation] = {}
    later: dict[bytes, bytes] = {}
    for item in work:
        if item.message.dedup_key:
            reservation = _claim(item, now, windows)
            first = wanted.setdefault(reservation.key, reservation)
            if first is not reservation:
                later[item.message_id] = first.transaction_id
    found = _reserve(session, list(wanted.values()), now)
    answers: dict[bytes, Duplicate | BrokerError] = {}
    own_before = []
    for reservation in wanted.values():
        owner = found.owners[reservation.key]
        if owner.transaction_id != reservation.transaction_id:
            answers[reservation.transaction_id] = _duplicate(owner, found.outcomes.get(owner.transaction_id))
        elif owner.expires_at != reservation.expires_at:
            own_before.append(reservation.transaction_id)
    return answers, later, own_before


def still_pending(session: Session, keys: Iterable[Key], now: int) -> set[Key]:
    """Those of the keys that belong to a transaction without a verdict."""
    owners = {
        key: owner
        for key, owner in _owners(session, [Reservation(*key, b"", 0, 0) for key in keys]).items()
        if owner.expires_at > now
    }
    outcomes = recorded_outcomes(session, {owner.transaction_id for owner in owners.values()}) if owners else {}
    return {key for key, owner in owners.items() if outcomes.get(owner.transaction_id, UNKNOWN).undecided}


def _duplicate(owner: _Owner, standing: RecordedOutcome | None) -> Duplicate | BrokerError:
    standing = standing or UNKNOWN
    if standing.undecided:
        return AlreadyExists(
            f"Transaction {format_id(owner.transaction_id)}, which has no verdict yet, has a message with this"
            " dedup_key; send again when it is decided.",
            reason="DEDUP_KEY_PENDING",
            field="dedup_key",
        )
    return Duplicate(owner.transaction_id, owner.position, standing.place(owner.position))


def reserve_for_prepare(
    session: Session, halves: Iterable[tuple[bytes, int, Half]], now: int, windows: Mapping[int, int]
) -> tuple[dict[bytes, BrokerError], list[Reservation]]:
    """Claims the keys of half messages; a transaction that cannot get all of its keys gets none.

    Args:
        session: of the transaction that stores them.
        halves: transaction id, position and half message. No two transactions may claim the same key.
        now: the time.
        windows: how long a key is owned, by topic id.

    Returns:
        Refusals by transaction, and the claims of the others, for `give_back`.
    """
    wanted = [
        Reservation(
            half.topic_id, dedup_hash(half.message.dedup_key), transaction_id, position, now + windows[half.topic_id]
        )
        for transaction_id, position, half in halves
        if half.message.dedup_key and half.topic_id in windows
    ]
    found = _reserve(session, wanted, now)
    refused: dict[bytes, BrokerError] = {}
    for reservation in wanted:
        owner = found.owners[reservation.key]
        field = f"messages[{reservation.position}].dedup_key"
        if owner.transaction_id != reservation.transaction_id:
            state = found.outcomes.get(owner.transaction_id, UNKNOWN).state
            refused[reservation.transaction_id] = AlreadyExists(
                f"Transaction {format_id(owner.transaction_id)} ({state.name if state else 'past retention'}) has a"
                " message with this dedup_key; nothing of this transaction was stored.",
                reason="DEDUP_KEY_TAKEN",
                field=field,
            )
        elif owner.position != reservation.position:
            refused[reservation.transaction_id] = same_key_twice(field)
    give_back(session, [reservation for reservation in wanted if reservation.transaction_id in refused])
    return refused, [reservation for reservation in wanted if reservation.transaction_id not in refused]


def give_back(session: Session, reservations: Sequence[Reservation]) -> None:
    """Releases the keys claimed at this time; keys that the transactions owned before are kept."""
    query = "DELETE FROM dedup_key WHERE topic_id = ? AND dedup_hash = ? AND transaction_id = ? AND expires_at = ?"
    session.execute_all([Statement(query, (*c.key, c.transaction_id, c.expires_at)) for c in sorted(reservations)])


def give_back_of_send(session: Session, work: Iterable[SendWork], now: int, windows: Mapping[int, int]) -> None:
    """Releases the keys that `reserve_for_send` claimed at this time for ordinary messages."""
    if claims := [_claim(item, now, windows) for item in work if item.message.dedup_key]:
        give_back(session, claims)


def _claim(item: SendWork, now: int, windows: Mapping[int, int]) -> Reservation:
    key = dedup_hash(item.message.dedup_key or "")
    return Reservation(item.topic_id, key, item.message_id, 0, now + windows[item.topic_id])


def freeing(keys: Iterable[tuple[int, bytes, bytes]]) -> list[Statement]:
    """Statements that release keys; from topic ids, hashes, and the owning transactions. By primary key."""
    query = "DELETE FROM dedup_key WHERE topic_id = ? AND dedup_hash = ? AND transaction_id = ?"
    return [Statement(query, key) for key in sorted(keys)]
