"""Seals what moves in the cell that it leaves: one transaction, after which nothing of it is found there.

Topics are hidden as deleted ones are, but under a name that retention leaves alone, so that no offset is taken and
nothing is stored in them. Rows that change are taken out of their tables until it is decided where they belong, so that
every call meets what it would meet of a topic or group that was deleted. What only grows, or is read through its topic,
stays: messages with their keys, dedup keys, what was redriven, and gaps.

Rows are locked in the order of groups, topics, sinks, half messages, progress, leases, scheduled messages, queues:
sends go on until the last step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.domain.place import InLog
from broker.storage.catalog.moves import MoveState, advance, enter, state_of
from broker.storage.engine.session import StartOver
from broker.storage.engine.statements import Statement, chunks, marks, rows_of
from broker.storage.groups import groups
from broker.storage.moving import evidence, taken_rows
from broker.storage.moving.columns import columns_of, places_of
from broker.storage.moving.contents import Contents, look_up, missing, needed, shared_in_transactions
from broker.storage.moving.refusals import MoveRefused, Why
from broker.storage.moving.taken_rows import TakenRows
from broker.storage.tables.rows import decode_released

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from broker.domain.cell import Name
    from broker.storage.engine.session import Session

MOST_ROWS = 200_000
RESUME, GIVE_UP = "halfmq cells move --resume", "halfmq cells move --give-up"
AT_ONCE = 2000
BYTES_AT_ONCE = 4 << 20

_COUNTS = (
    ("group_progress", "group_id"),
    ("lease", "group_id"),
    ("group_filter", "group_id"),
    ("half_message", "topic_id"),
    ("scheduled_message", "topic_id"),
    ("sink_transaction", "sink_id"),
)
_SCHEDULED = "SELECT COUNT(DISTINCT transaction_id) FROM scheduled_message WHERE topic_id IN ({ids})"
# A UNION has each of them once.
_EVIDENCE = (
    "SELECT COUNT(*) FROM (SELECT transaction_id FROM half_message WHERE topic_id IN ({ids})"
    " UNION SELECT transaction_id FROM scheduled_message WHERE topic_id IN ({ids})) own"
    " JOIN {table} found ON found.transaction_id = own.transaction_id"
)


def hidden(topic_id: int) -> str:
    """The name of a sealed topic: retention deletes those that begin with ~."""
    return f"^{topic_id}"


def estimate(session: Session, contents: Contents) -> int:
    """About how many rows the seal takes out of their tables: all but the names of producer groups."""
    ids = contents.topic_ids
    keys = {"topic_id": ids, "group_id": contents.members, "sink_id": sorted(contents.sinks.values())}
    total = len(ids) + len(contents.queues) + len(contents.members) + len(contents.sinks)
    for table, column in _COUNTS:
        query = f"SELECT COUNT(*) FROM {table} WHERE {column}"
        total += sum(row[0] for row in session.fetch_in(query, keys[column]))
    if ids:
        # Scheduled messages go with their op records.
        total += session.fetch(_SCHEDULED.format(ids=marks(ids)), ids)[0][0]
        for table in evidence.EVIDENCE:
            total += session.fetch(_EVIDENCE.format(ids=marks(ids), table=table), [*ids, *ids])[0][0]
    return int(total)


def refuse_too_many(session: Session, names: Collection[Name], most: int) -> None:
    """Refuses a seal that would take out more rows than it may, before it begins.

    Raises:
        MoveRefused: it would.
    """
    if (rows := estimate(session, look_up(session, names))) > most:
        raise too_many(rows, most, begun=True)


def too_many(rows: int, most: int, *, begun: bool = False) -> MoveRefused:
    """The refusal of a seal that would last too long; of a move that has begun, or is planned."""
    if begun:
        told = f"wait until there are fewer, or raise --most-rows, and go on with `{RESUME}`"
    else:
        told = "wait until there are fewer, move fewer names, or raise --most-rows"
    return MoveRefused(
        f"{rows} rows of half messages, scheduled messages, leases and progress would have to be moved while the topics"
        f" stand still, and {most} are allowed: {told}.",
        Why.TOO_MANY_ROWS,
        field="most_rows",
    )


def seal(
    session: Session, move_id: int, names: Collection[Name], now: int, most_rows: int = MOST_ROWS
) -> Contents | None:
    """Seals what moves.

    Args:
        session: a transaction in the cell that is left.
        move_id: the move.
        names: what moves.
        now: the time (microseconds).
        most_rows: how many may be taken out.

    Returns:
        What was sealed; None if it was before.

    Raises:
        MoveRefused: the move was given up, the names are no closed set any more, or there are too many rows. Nothing
            may be committed then.
        StartOver: the set changed meanwhile.
    """
    before = enter(session, move_id, MoveState.SEALED, now)
    if before is MoveState.GIVEN_UP:
        raise given_up(move_id)
    if before is not None:
        return None
    contents = _locked(session, names)
    _check(session, contents)
    taking = _Taking(session, TakenRows(session, move_id), contents, most_rows)
    taking.halves()
    taking.sinks()
    taking.groups()
    taking.scheduled()
    taking.producer_groups()
    taking.topics(now)
    session.insert(
        "moved_name",
        "kind, name, move_id",
        [(int(name.kind), name.text, move_id) for name in contents.names],
        keep_existing="name",
    )
    return contents


def given_up(move_id: int) -> MoveRefused:
    """The refusal of a step of a move that was given up."""
    return MoveRefused(f"The move {move_id} was given up meanwhile.", Why.MOVE_GIVEN_UP, field="move")


def _locked(session: Session, names: Collection[Name]) -> Contents:
    before = look_up(session, names)
    groups.lock(session, sorted(before.groups.values()))
    groups.lock(session, before.members)
    for table, column, keys in (
        ("topic", "topic_id", before.topic_ids),
        ("sink", "sink_id", sorted(before.sinks.values())),
    ):
        query = f"SELECT {column} FROM {table}{session.dialect.by_key} WHERE {column}"
        session.fetch_in(query, keys, f" ORDER BY {column}{session.dialect.for_update}")
    found = look_up(session, names)
    if found != before:
        raise StartOver
    return found


def _check(session: Session, contents: Contents) -> None:
    if absent := missing(contents):
        raise MoveRefused(
            f"{absent[0]} was deleted meanwhile: give the move up, and begin another one.",
            Why.NOT_THERE,
        )
    if others := needed(session, contents):
        raise MoveRefused(
            f"These came after the move had begun, and have to move, too: {', '.join(map(str, sorted(others)))}. Take"
            f" the move back with `{GIVE_UP}`, and begin again with them; or delete them, and go on with `{RESUME}`.",
            Why.MOVED_APART,
        )
    if others := shared_in_transactions(session, contents):
        raise MoveRefused(
            "Transactions without a verdict have messages inside and outside of what moves; outside:"
            f" {', '.join(map(str, sorted(others)))}. Go on with `{RESUME}` when they are decided; or take the move"
            f" back with `{GIVE_UP}`, and begin again with these, too.",
            Why.TRANSACTIONS_APART,
        )


class _Taking:
    """Takes rows out of their tables."""

    def __init__(self, session: Session, taken: TakenRows, contents: Contents, most_rows: int) -> None:
        self._session = session
        self._taken = taken
        self._contents = contents
        self._most = most_rows
        self._producer_groups: set[int] = set()
        self._topics, self._queues = set(contents.topic_ids), set(contents.queues)

    def _add(self, table: str, found: Sequence[Sequence[Any]], columns: str = "") -> None:
        columns = columns or columns_of(table)
        self._taken.add(table, columns, found)
        if self._taken.count > self._most:
            raise too_many(self._taken.count, self._most, begun=True)
        if (at := places_of(columns).get("producer_group_id")) is not None:
            self._producer_groups |= {row[at] for row in found if row[at] is not None}

    def _read(self, table: str, column: str, keys: Sequence[Any], order: str, index: str = "") -> list[tuple[Any, ...]]:
        dialect = self._session.dialect
        return self._session.fetch_in(
            f"SELECT {columns_of(table)} FROM {table}{index or dialect.by_key} WHERE {column}",
            keys,
            f" ORDER BY {order}{dialect.for_update}",
        )

    def _take(self, table: str, column: str, keys: Sequence[Any], order: str) -> None:
        """Takes rows by the leading column of their primary key."""
        for some in chunks(keys, AT_ONCE):
            found = self._read(table, column, some, order)
            if found:
                self._add(table, found)
                self._session.delete_in(table, column, some)

    def halves(self) -> None:
        """Half messages with their checks; left ones of transactions with a verdict are dropped."""
        sizes = self._session.fetch_in(
            "SELECT transaction_id, SUM(size) FROM half_message WHERE topic_id",
            self._contents.topic_ids,
            " GROUP BY transaction_id",
        )
        for some in _pieces(sorted((row[0], int(row[1])) for row in sizes)):
            found = self._read("half_message", "transaction_id", some, "transaction_id, position")
            decided = {
                row[0]
                for row in self._session.fetch_in("SELECT transaction_id FROM op_record WHERE transaction_id", some)
            }
            self._add("half_message", [row for row in found if row[0] not in decided])
            # Those that were decided while their rows were waited for are gone.
            left = sorted({row[0] for row in found})
            self._session.delete_in("half_message", "transaction_id", left)
            pending = [own for own in left if own not in decided]
            self._evidence(dict.fromkeys(evidence.EVIDENCE, pending))

    def _evidence(self, wanted: Mapping[str, Sequence[bytes]], staying: Collection[bytes] = ()) -> None:
        """Takes evidence of transactions, by table; that of those that stay is copied."""
        by_transaction = self._session.dialect.by_index("operator_action_transaction")
        for table, order, index in (
            (evidence.CHECKS, "transaction_id, check_number", ""),
            (evidence.ACTIONS, "action_id", by_transaction),
        ):
            found = self._read(table, "transaction_id", wanted[table], order, index)
            self._add(table, found)
            own = places_of(columns_of(table))["transaction_id"]
            if leaving := sorted({row[own] for row in found}.difference(staying)):
                evidence.drop(self._session, table, leaving)

    def sinks(self) -> None:
        """Sinks with the epochs that are being written."""
        ids = sorted(self._contents.sinks.values())
        written = self._session.fetch_in("SELECT transaction_id FROM sink_transaction WHERE sink_id", ids)
        self._take("sink_transaction", "transaction_id", sorted(row[0] for row in written), "transaction_id")
        self._take("sink", "sink_id", ids, "sink_id")

    def groups(self) -> None:
        """Groups: first the progress, which a claim locks while it adds leases."""
        members = self._contents.members
        self._take("group_progress", "group_id", members, "group_id, queue_id")
        # A claim that is waited for may leave a part of its lease in another one.
        while leased := self._session.fetch_in("SELECT lease_id FROM lease WHERE group_id", members):
            self._take("lease", "lease_id", sorted(row[0] for row in leased), "lease_id")
        self._take("group_filter", "group_id", members, "group_id, topic_id")
        self._take("consumer_group", "group_id", members, "group_id")

    def scheduled(self) -> None:
        """Scheduled messages with their op records, which a recall finds them by, and a move into the log changes.

        Op records come with their checks and what operators did.
        """
        columns = "deliver_at, transaction_id, position"
        found = self._session.fetch_in(
            f"SELECT {columns}, size FROM scheduled_message WHERE topic_id", self._contents.topic_ids
        )
        locking = (
            f"SELECT {columns_of('scheduled_message')} FROM scheduled_message WHERE deliver_at = ?"
            f" AND transaction_id = ? AND position = ?{self._session.dialect.for_update}"
        )
        for some in _pieces(sorted((tuple(row[:3]), int(row[3])) for row in found)):
            taken = rows_of(self._session.execute_all([Statement(locking, key) for key in some]))
            self._add("scheduled_message", taken)
            self._session.execute_all(self._session.deletion_of("scheduled_message", columns, some))
            self._records(sorted({row[1] for row in taken}))

    def _records(self, ids: Sequence[bytes]) -> None:
        names = columns_of("op_record").split(", ")
        found = self._read("op_record", "transaction_id", ids, "transaction_id")
        self._add("op_record", found)
        records = [dict(zip(names, row, strict=True)) for row in found]
        # One with messages elsewhere stays for these.
        staying = {row["transaction_id"] for row in records if not self._is_inside(row["released"])}
        self._evidence(evidence.with_evidence(records), staying)
        leaving = [row["transaction_id"] for row in records if row["transaction_id"] not in staying]
        self._session.delete_in("op_record", "transaction_id", leaving)

    def _is_inside(self, released: str | None) -> bool:
        return all(
            place.queue_id in self._queues if isinstance(place, InLog) else place.topic_id in self._topics
            for place in decode_released(released)
        )

    def producer_groups(self) -> None:
        """The names of the producer groups of what was taken; their numbers differ in each cell."""
        query = "SELECT producer_group_id, name FROM producer_group WHERE producer_group_id"
        columns = "producer_group_id, name"
        self._add("producer_group", self._session.fetch_in(query, sorted(self._producer_groups)), columns)

    def topics(self, now: int) -> None:
        """Hides the topics, last the queues: sends wait from here on."""
        session, ids = self._session, self._contents.topic_ids
        self._add("topic", self._read("topic", "topic_id", ids, "topic_id"))
        self._add("queue", self._read("queue", "queue_id", self._contents.queues, "queue_id"))
        for topic_id in ids:
            session.run("UPDATE queue SET deleted_at = ? WHERE topic_id = ?", (now, topic_id))
            session.run(
                "UPDATE topic SET deleted_at = ?, name = ? WHERE topic_id = ?", (now, hidden(topic_id), topic_id)
            )


def _pieces(sized: Iterable[tuple[Any, int]]) -> Iterator[list[Any]]:
    """Keys in pieces of bounded number and size."""
    piece: list[Any] = []
    size = 0
    for key, own in sized:
        if piece and (size + own > BYTES_AT_ONCE or len(piece) == AT_ONCE):
            yield piece
            piece, size = [], 0
        piece.append(key)
        size += own
    if piece:
        yield piece


def unseal(session: Session, move_id: int, now: int, merge: Callable[[Session, list[dict[str, Any]]], object]) -> bool:
    """Gives a move up in the cell that was to be left: all is as it was before the seal. A later seal is refused.

    It is given up in the other cell before.

    Args:
        session: a transaction in the cell that was to be left.
        move_id: the move.
        now: the time (microseconds).
        merge: stores op records.

    Returns:
        Whether it was sealed.
    """
    # A seal whose COMMIT is on its way is waited for.
    if enter(session, move_id, MoveState.GIVEN_UP, now) is not MoveState.SEALED:
        return False
    for _, table, columns, found in taken_rows.read(session, move_id):
        if table == "topic":
            _show(session, columns, found)
        elif table == "op_record":
            merge(session, [dict(zip(columns.split(", "), row, strict=True)) for row in found])
        elif table in evidence.EVIDENCE:
            evidence.store(session, table, columns, found)
        elif table not in {"queue", "producer_group"}:
            session.insert(table, columns, found)
    session.run("DELETE FROM moved_name WHERE move_id = ?", (move_id,))
    taken_rows.forget(session, move_id)
    # This may have taken long, and brokers look at what ended lately.
    advance(session, move_id, MoveState.GIVEN_UP, max(now, session.dialect.now(session)))
    return True


def _show(session: Session, columns: str, found: Sequence[Sequence[Any]]) -> None:
    at = places_of(columns)
    for row in found:
        topic_id = row[at["topic_id"]]
        session.run("UPDATE topic SET deleted_at = NULL, name = ? WHERE topic_id = ?", (row[at["name"]], topic_id))
        session.run("UPDATE queue SET deleted_at = NULL WHERE topic_id = ?", (topic_id,))


def leave(session: Session, move_id: int, now: int) -> bool:
    """What has moved is left to retention in the cell that it left; returns whether anything was done.

    It has come to the other cell before, which is final.
    """
    if state_of(session, move_id, locked=True) is not MoveState.SEALED:
        return False
    for _, _, columns, found in taken_rows.read(session, move_id, "topic"):
        at = places_of(columns)["topic_id"]
        for row in found:
            session.run("UPDATE topic SET name = ? WHERE topic_id = ?", (f"~{row[at]}", row[at]))
    taken_rows.forget(session, move_id)
    advance(session, move_id, MoveState.GONE, now)
    return True
