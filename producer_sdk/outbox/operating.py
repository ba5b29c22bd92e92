"""What operators see and do: counts, failed messages, retry and skip."""

from __future__ import annotations

from typing import TYPE_CHECKING

from client_core.arguments import check_count
from client_core.times import from_micros
from producer_sdk.outbox.rows import THE_RELAY
from producer_sdk.outbox.states import FailedMessage, OutboxState, OutboxStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from client_core.local_database import LocalTransaction
    from producer_sdk.outbox.schema import OutboxSchema

__all__ = ["Operating"]

_ERROR = OutboxState.MESSAGE_ERROR.value
_AT_ONCE = 500


MOST_COUNTED = 100_000
"""Rows of a state that are counted; more count as so many."""


class Operating:
    """The operators' statements."""

    def __init__(self, schema: OutboxSchema) -> None:
        """Takes the tables."""
        self._table = schema.messages.path
        self._turn = schema.turn.path
        self._index = schema.pending_index

    def status(self, local: LocalTransaction) -> OutboxStatus:
        """Counts all rows by the index of pending rows; takes as long as there are rows."""
        now = local.dialect.now
        by_index = local.dialect.by_index(self._index)
        counts = local.fetch(f"SELECT state, COUNT(*) FROM {self._table}{by_index} GROUP BY state")  # noqa: S608
        oldest = self._oldest(local)
        turn = local.fetch(f"SELECT owner, until_at - {now} FROM {self._turn} WHERE name = :name", name=THE_RELAY)  # noqa: S608
        held = bool(turn) and int(turn[0][1]) > 0
        return OutboxStatus(
            {OutboxState(state): int(count) for state, count in sorted(counts)},
            oldest,
            str(turn[0][0]) if held else "",
            int(turn[0][1]) / 1_000_000 if held else 0.0,
        )

    def backlog(self, local: LocalTransaction) -> OutboxStatus:
        """Counts rows that are not sent, up to a bound in each state; by the index of pending rows."""
        by_index = local.dialect.by_index(self._index)
        counts: dict[OutboxState, int] = {}
        for state in (OutboxState.UNKNOWN, OutboxState.LOCAL_COMMIT, OutboxState.MESSAGE_ERROR):
            ((count,),) = local.fetch(
                f"SELECT COUNT(*) FROM (SELECT 1 FROM {self._table}{by_index}"  # noqa: S608
                f" WHERE state = '{state.value}' LIMIT {MOST_COUNTED}) some_of_them"
            )
            counts[state] = int(count)
        oldest = self._oldest(local)
        return OutboxStatus(counts, oldest)

    def _oldest(self, local: LocalTransaction) -> float | None:
        """Seconds since the oldest row that is to be sent was written."""
        found = local.fetch(
            f"SELECT {local.dialect.now} - created_at FROM {self._table}{local.dialect.by_index(self._index)}"  # noqa: S608
            f" WHERE state = '{OutboxState.LOCAL_COMMIT.value}' AND id > 0 ORDER BY id LIMIT 1"
        )
        return int(found[0][0]) / 1_000_000 if found else None

    def errors(self, local: LocalTransaction, after: int, limit: int) -> list[FailedMessage]:
        """Messages that failed, in the order of their numbers."""
        check_count("limit", limit, 10_000)
        rows = local.fetch(
            "SELECT id, message_id, topic, message_group, failed_in, retries, cause, changed_at, tried_at"  # noqa: S608
            f" FROM {self._table}{local.dialect.by_index(self._index)}"
            f" WHERE state = '{_ERROR}' AND id > {int(after)} ORDER BY id LIMIT {limit}"
        )
        return [
            FailedMessage(
                int(row[0]),
                str(row[1]),
                row[2],
                row[3],
                OutboxState(row[4]),
                int(row[5]),
                row[6] or "",
                from_micros(int(row[7])),
                None if row[8] is None else from_micros(int(row[8])),
            )
            for row in rows
        ]

    def retry(self, local: LocalTransaction, ids: Iterable[int], *, possibly_twice: bool) -> int:
        """Puts failed messages back to where they failed; how many."""
        now = local.dialect.now
        tried = ", tried_at = NULL" if possibly_twice else ""
        what = f"state = failed_in, retries = 0, due_at = {now}, deadline = NULL, changed_at = {now}{tried}"
        return self._change(local, ids, what)

    def skip(self, local: LocalTransaction, ids: Iterable[int]) -> int:
        """Failed messages become LOCAL_ROLLBACK: they are never sent, and their message groups go on; how many."""
        what = f"state = '{OutboxState.LOCAL_ROLLBACK.value}', changed_at = {local.dialect.now}"
        return self._change(local, ids, what)

    def _change(self, local: LocalTransaction, ids: Iterable[int], what: str) -> int:
        listed = _numbers(ids)
        return sum(
            local.execute(
                f"UPDATE {self._table}{local.dialect.by_key} SET {what}"  # noqa: S608
                f" WHERE id IN ({','.join(map(str, listed[begin : begin + _AT_ONCE]))}) AND state = '{_ERROR}'"
            )
            for begin in range(0, len(listed), _AT_ONCE)
        )


def _numbers(ids: Iterable[int]) -> Sequence[int]:
    listed = sorted(ids)
    for each in listed:
        if isinstance(each, bool) or not isinstance(each, int):
            msg = f"ids are the numbers of rows (FailedMessage.id), not {each!r}"
            raise TypeError(msg)
    return listed
