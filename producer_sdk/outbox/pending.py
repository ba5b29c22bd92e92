"""What the relay reads and writes: rows of one state in the order of their numbers, and changes by primary key.

Reads use the index of pending rows and no lock, so what they cost follows what is pending, not what is kept; changes
name their rows by primary key, in small transactions. A row is found by its state, not by a number after the last one:
numbers become visible out of order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from producer_sdk.outbox.content import message_of
from producer_sdk.outbox.rows import brief, micros
from producer_sdk.outbox.states import OutboxState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from client_core.local_database import LocalTransaction
    from client_core.message import Message
    from producer_sdk.outbox.schema import OutboxSchema

__all__ = ["NO_END", "Pending", "PendingRows"]

NO_END = (1 << 63) - 1
"""Behind all numbers."""

_COLUMNS = "id, message_id, topic, message_group, headers, retries, size"
_LOCAL_COMMIT = OutboxState.LOCAL_COMMIT.value
_ERROR = OutboxState.MESSAGE_ERROR.value


@dataclass(slots=True)
class Pending:
    """A row that waits; times in microseconds.

    Attributes:
        id: Its number.
        message_id: Id of the message.
        topic: Its topic.
        message_group: Its message group, or None.
        headers: Its other properties, as stored.
        retries: How often it failed.
        size: Bytes of the body.
        due_in: Until it is due; negative: it is.
        time_left: Until its deadline; None: it has none.
        tried_ago: Since it may have been stored first; None: it was not.
        body: The body; None: it is read separately.
    """

    id: int
    message_id: str
    topic: str
    message_group: str | None
    headers: str | None
    retries: int
    size: int
    due_in: int
    time_left: int | None
    tried_ago: int | None
    body: bytes | None

    @property
    def weight(self) -> int:
        """Bytes of the message, about: properties may be as many as the body's."""
        return self.size + len(self.headers or "")

    @property
    def order(self) -> tuple[str, str] | None:
        """What it keeps its order with; None: nothing."""
        return (self.topic, self.message_group) if self.message_group is not None else None

    def message(self) -> Message:
        """The message."""
        assert self.body is not None  # noqa: S101 - read before it is sent
        return message_of(self.message_id, self.topic, self.message_group, self.headers, self.body)


class PendingRows:
    """The relay's statements on the table of messages."""

    def __init__(self, schema: OutboxSchema) -> None:
        """Takes the tables."""
        self._table = schema.messages.path
        self._index = schema.pending_index

    def read(self, local: LocalTransaction, after: int, limit: int, small: int, before: int = NO_END) -> list[Pending]:
        """Messages to be sent, in the order of their numbers; with bodies of up to so many bytes where they are due."""
        where = f"{local.dialect.by_index(self._index)} WHERE state = '{_LOCAL_COMMIT}'"
        where += f" AND id > {after} AND id < {before}"
        return self._read(local, f"{where} ORDER BY id LIMIT {limit}", small)

    def read_ready(self, local: LocalTransaction, ids: Sequence[int], small: int) -> list[Pending]:
        """The same by their numbers."""
        where = f"{local.dialect.by_key} WHERE id IN ({_list(ids)}) AND state = '{_LOCAL_COMMIT}'"
        return self._read(local, where, small)

    def _read(self, local: LocalTransaction, where: str, small: int) -> list[Pending]:
        now = local.dialect.now
        rows = local.fetch(
            f"SELECT {_COLUMNS}, due_at - {now}, deadline - {now}, {now} - tried_at,"  # noqa: S608
            f" CASE WHEN size <= {small} AND due_at <= {now} THEN body END FROM {self._table}{where}"
        )
        return [_pending(row) for row in rows]

    def count(self, local: LocalTransaction, last: int, after: int = 0) -> tuple[int, int]:
        """How many messages are to be sent between two numbers, and the sum of theirs; from the index alone."""
        ((count, total),) = local.fetch(
            f"SELECT COUNT(*), SUM(id) FROM {self._table}{local.dialect.by_index(self._index)}"  # noqa: S608
            f" WHERE state = '{_LOCAL_COMMIT}' AND id > {after} AND id <= {last}"
        )
        return int(count), int(total or 0)

    def bodies(self, local: LocalTransaction, ids: Sequence[int]) -> dict[int, bytes]:
        """Bodies by number."""
        rows = local.fetch(f"SELECT id, body FROM {self._table} WHERE id IN ({_list(ids)})")  # noqa: S608
        return {int(row[0]): bytes(row[1]) for row in rows}

    def sent(self, local: LocalTransaction, ids: Sequence[int], *, keep: bool) -> None:
        """LOCAL_COMMIT becomes GLOBAL_COMMIT, or the rows go."""
        if not keep:
            condition = f"id IN ({_list(ids)}) AND state = '{_LOCAL_COMMIT}'"
            local.execute(local.dialect.delete(self._table, condition))
            return
        self._change(local, ids, f"state = '{OutboxState.GLOBAL_COMMIT.value}', cause = NULL")

    def failed(self, local: LocalTransaction, ids: Sequence[int], cause: str, wait: float, ago: float) -> None:
        """Notes an attempt of so long ago that failed, after which they may be stored, and when the next one is."""
        now = local.dialect.now
        what = (
            f"retries = retries + 1, cause = :cause, due_at = {now} + {micros(wait)},"
            f" tried_at = COALESCE(tried_at, {now} - {micros(ago)})"
        )
        self._change(local, ids, what, cause=brief(cause))

    def error(self, local: LocalTransaction, ids: Sequence[int], cause: str) -> None:
        """LOCAL_COMMIT becomes MESSAGE_ERROR."""
        what = f"state = '{_ERROR}', failed_in = '{_LOCAL_COMMIT}', retries = retries + 1, cause = :cause"
        self._change(local, ids, what, cause=brief(cause))

    def note_tried(self, local: LocalTransaction, first: int, last: int, ago: int) -> list[Pending]:
        """Notes on the rows between two numbers that they may have been stored so long ago.

        Returns:
            Those that another transaction holds, on which it is not noted.
        """
        # Read first: an UPDATE of a range would wait for rows of transactions that are still open.
        rows = local.fetch(
            f"SELECT id FROM {self._table}{local.dialect.by_index(self._index)} WHERE state = '{_LOCAL_COMMIT}'"  # noqa: S608
            f" AND id >= {first} AND id <= {last}"
        )
        ids = [int(row[0]) for row in rows]
        held: list[Pending] = []
        for begin in range(0, len(ids), 1000):
            part = ids[begin : begin + 1000]
            if passed_over := self.held(local, part):
                held += self.read_ready(local, sorted(passed_over), -1)
                part = [number for number in part if number not in passed_over]
            if part:
                self.tried(local, part, ago / 1_000_000)
        return held

    def tried(self, local: LocalTransaction, ids: Sequence[int], ago: float) -> None:
        """Notes that rows may have been stored so many seconds ago, where nothing earlier is noted."""
        self._change(local, ids, f"tried_at = COALESCE(tried_at, {local.dialect.now} - {micros(ago)})")

    def held(self, local: LocalTransaction, ids: Sequence[int]) -> set[int]:
        """Which of these messages to be sent other transactions hold; locks the others."""
        if not local.dialect.skip_locked:
            return set()
        condition = f"WHERE id IN ({_list(ids)}) AND state = '{_LOCAL_COMMIT}'"
        query = f"SELECT id FROM {self._table}{local.dialect.by_key} {condition}"  # noqa: S608
        free = {int(row[0]) for row in local.fetch(query + local.dialect.skip_locked)}
        if len(free) == len(ids):
            return set()
        # Or they are not there any more.
        return {int(row[0]) for row in local.fetch(query)} - free

    def stopped_groups(self, local: LocalTransaction, after: int, limit: int) -> list[tuple[int, str, str | None]]:
        """Messages that failed: number, topic and message group."""
        rows = local.fetch(
            f"SELECT id, topic, message_group, failed_in FROM {self._table}{local.dialect.by_index(self._index)}"  # noqa: S608
            f" WHERE state = '{_ERROR}' AND id > {after} ORDER BY id LIMIT {limit}"
        )
        # What failed before it was decided is not in anyone's way.
        return [(int(row[0]), str(row[1]), row[2] if row[3] == _LOCAL_COMMIT else None) for row in rows]

    def delete_old(
        self, local: LocalTransaction, keep: Mapping[OutboxState, float], after: dict[OutboxState, int], limit: int
    ) -> int:
        """Deletes rows that were kept for long enough; how many.

        Args:
            local: A transaction.
            keep: Seconds that rows of a state are kept.
            after: Numbers before which there was nothing left, by state; moved forward.
            limit: Rows of a state that are looked at.
        """
        count, now = 0, local.dialect.now
        for state, seconds in keep.items():
            rows = local.fetch(
                f"SELECT id, {now} - changed_at FROM {self._table}{local.dialect.by_index(self._index)}"  # noqa: S608
                f" WHERE state = '{state.value}' AND id > {after.get(state, 0)} ORDER BY id LIMIT {limit}"
            )
            old = [int(row[0]) for row in rows if int(row[1]) >= micros(seconds)]
            if old:
                condition = f"id IN ({_list(old)}) AND state = '{state.value}'"
                if local.dialect.skip_locked:
                    query = f"SELECT id FROM {self._table}{local.dialect.by_key} WHERE {condition}"  # noqa: S608
                    old = [int(row[0]) for row in local.fetch(query + local.dialect.skip_locked)]
            if old:
                condition = f"id IN ({_list(old)}) AND state = '{state.value}'"
                local.execute(local.dialect.delete(self._table, condition))
            if rows and len(old) == len(rows):
                after[state] = max(old)
            count += len(old)
        return count

    def undecided(self, local: LocalTransaction, after: int, limit: int) -> list[tuple[Pending, int]]:
        """Messages in UNKNOWN that are due, without their bodies, each with the time that it was due."""
        now = local.dialect.now
        rows = local.fetch(
            f"SELECT {_COLUMNS}, due_at - {now}, deadline - {now}, NULL, NULL, due_at"  # noqa: S608
            f" FROM {self._table}{local.dialect.by_index(self._index)}"
            f" WHERE state = '{OutboxState.UNKNOWN.value}' AND id > {after} AND due_at <= {now}"
            f" ORDER BY id LIMIT {limit}"
        )
        return [(_pending(row[:-1]), int(row[-1])) for row in rows]

    def claim_decision(self, local: LocalTransaction, row_id: int, due_at: int, wait: float) -> bool:
        """Counts a decision about a message in UNKNOWN before it is asked for; False: another relay asks."""
        now = local.dialect.now
        return (
            self._change(
                local,
                [row_id],
                f"retries = retries + 1, due_at = {now} + {micros(wait)}",
                f"state = '{OutboxState.UNKNOWN.value}' AND due_at = {due_at}",
            )
            == 1
        )

    def decided(
        self,
        local: LocalTransaction,
        row_id: int,
        state: OutboxState,
        cause: str | None,
        content: dict[str, Any] | None,
        due_at: int | None = None,
    ) -> bool:
        """UNKNOWN becomes what was decided, perhaps with another content; False: it was not UNKNOWN any more.

        Or not due at that time any more, where one is given.
        """
        now = local.dialect.now
        what = f"state = '{state.value}', retries = 0, due_at = {now}, cause = :cause"
        if state is OutboxState.MESSAGE_ERROR:
            what = f"state = '{_ERROR}', failed_in = '{OutboxState.UNKNOWN.value}', cause = :cause"
        values = {"cause": cause and brief(cause), **(content or {})}
        for name in content or ():
            expression = f":{name}"
            if name == "body":
                expression, values[name] = local.binary(name, values[name])
            what += f", {name} = {expression}"
        condition = f"state = '{OutboxState.UNKNOWN.value}'" + ("" if due_at is None else f" AND due_at = {due_at:d}")
        return self._change(local, [row_id], what, condition, **values) == 1

    def undecided_yet(self, local: LocalTransaction, row_id: int, cause: str) -> None:
        """Notes why a decision failed."""
        self._change(local, [row_id], "cause = :cause", f"state = '{OutboxState.UNKNOWN.value}'", cause=brief(cause))

    def _change(
        self,
        local: LocalTransaction,
        ids: Sequence[int],
        what: str,
        condition: str = f"state = '{_LOCAL_COMMIT}'",
        **values: Any,
    ) -> int:
        return local.execute(
            f"UPDATE {self._table}{local.dialect.by_key} SET {what}, changed_at = {local.dialect.now}"  # noqa: S608
            f" WHERE id IN ({_list(ids)}) AND {condition}",
            **values,
        )


def _list(ids: Sequence[int]) -> str:
    return ",".join(map(str, ids))


_ORDER: Callable[[Any], int | None] = lambda value: None if value is None else int(value)  # noqa: E731


def _pending(row: Sequence[Any]) -> Pending:
    own_id, message_id, topic, group, headers, retries, size, due_in, left, tried_ago, body = row
    return Pending(
        int(own_id),
        str(message_id),
        topic,
        group,
        headers,
        int(retries),
        int(size),
        int(due_in),
        _ORDER(left),
        _ORDER(tried_ago),
        None if body is None else bytes(body),
    )
