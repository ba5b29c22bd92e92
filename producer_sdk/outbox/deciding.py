"""Decides about messages in UNKNOWN, by the user's callback.

Any relay with a callback does, whoever has the turn. Each decision is counted before the callback is called, so its
number is bounded also where the process dies over it. What it says takes effect only while the row is still UNKNOWN:
against a confirmation that comes at the same time, one of the two wins, and the other one learns that it came too late.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from client_core.local_database import text_of
from client_core.message import Message
from client_core.states import LocalTransactionState
from producer_sdk.outbox.content import content_of
from producer_sdk.outbox.pending import PendingRows
from producer_sdk.outbox.states import OutboxState
from producer_sdk.outbox.working import LOCK_WAIT, is_locked

if TYPE_CHECKING:
    from client_core.local_database import LocalTransaction
    from producer_sdk.outbox.content import Content
    from producer_sdk.outbox.pending import Pending
    from producer_sdk.outbox.schema import OutboxSchema
    from producer_sdk.outbox.settings import RelaySettings
    from producer_sdk.outbox.working import OpensDatabase, RunsWork


__all__ = ["Decide", "Decider"]

_log = logging.getLogger("halfmq.relay")

Decide: TypeAlias = Callable[[Message], "LocalTransactionState | Message"]
"""The user's decision about a message: COMMIT, ROLLBACK or UNKNOWN, or the message that is to be sent in its place."""

_AT_ONCE = 100
_MOST_FOUND, _MOST_OF_ORDER = 5_000, 200
"""Rows that wait here for their turn, and of one message group."""
_REST = 20.0
_END = 5.0
"""Seconds that a stop waits for callbacks."""
_NEXT = {
    LocalTransactionState.COMMIT: OutboxState.LOCAL_COMMIT,
    LocalTransactionState.ROLLBACK: OutboxState.LOCAL_ROLLBACK,
    LocalTransactionState.UNKNOWN: OutboxState.UNKNOWN,
}


@dataclass(slots=True)
class _Asked:
    """A message about which the callback is asked, in one of the threads.

    Attributes:
        row: The message.
        answer: What it says; or the exception that it raised.
    """

    row: Pending
    answer: tuple[OutboxState, Content | None] | BaseException | None = None


class Decider:
    """Works in threads of its own: one on the database, and a few that call back, because callbacks may take long."""

    def __init__(
        self, database: OpensDatabase, schema: OutboxSchema, settings: RelaySettings, decide: Decide, max_body: int
    ) -> None:
        """Starts nothing."""
        self._database = database
        self._run: RunsWork
        self._rows = PendingRows(schema)
        self._settings = settings
        self._decide = decide
        self._max_body = max_body
        self._stopping = threading.Event()
        self._signal = threading.Event()
        self._thread: threading.Thread | None = None
        self._callers = 0
        self._to_ask: queue.SimpleQueue[_Asked | None] = queue.SimpleQueue()
        self._answered: queue.SimpleQueue[_Asked] = queue.SimpleQueue()
        self._under_way: dict[int, Pending] = {}
        self._found: list[tuple[Pending, int]] = []
        self._look_due = 0.0

    def start(self, decided: Callable[[], None]) -> None:
        """Begins; calls ``decided`` when there is something to send."""
        self._thread = threading.Thread(target=self._work, args=(decided,), name="halfmq-decide", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends it after the decisions under way, if that is soon."""
        self._stopping.set()
        self._signal.set()
        if self._thread is not None:
            self._thread.join(_END)

    def _work(self, decided: Callable[[], None]) -> None:
        try:
            with self._database() as self._run:
                self._go_on(decided)
        finally:
            for _ in range(self._callers):
                self._to_ask.put(None)

    def _go_on(self, decided: Callable[[], None]) -> None:
        while not self._stopping.is_set():
            began = time.monotonic()
            self._signal.clear()
            try:
                if self.decide_due():
                    decided()
            except Exception as error:
                _log.warning("messages in UNKNOWN cannot be decided now: %s; trying again", text_of(error))
                self._stopping.wait(1.0)
            self._signal.wait(self._pause(began))
        give_up = time.monotonic() + _END
        while self._under_way and (left := give_up - time.monotonic()) > 0:
            self._signal.wait(left)
            self._signal.clear()
            self._store_answers()

    def decide_due(self) -> int:
        """Asks about messages that are due, as many as there are threads, and stores answers; how many left UNKNOWN.

        About messages of one message group it asks one after the other.
        """
        count = self._store_answers() + self._ask_found()
        if self._has_room() and time.monotonic() >= self._look_due:
            self._look()
            count += self._ask_found()
        return count + self._store_answers()

    def _look(self) -> None:
        """Finds what is due, and keeps it: a group with many messages is not gone through again for each of them."""
        began = time.monotonic()
        self._found = []
        of_order: Counter[tuple[str, str]] = Counter()
        after = 0
        while len(self._found) < _MOST_FOUND and not self._stopping.is_set():
            page = self._run(lambda local, after=after: self._rows.undecided(local, after, _AT_ONCE))  # type: ignore[misc]
            for row, due_at in page:
                if row.id in self._under_way:
                    continue
                if row.order is not None:
                    of_order[row.order] += 1
                    if of_order[row.order] > _MOST_OF_ORDER:
                        continue
                self._found.append((row, due_at))
            if len(page) < _AT_ONCE:
                break
            after = page[-1][0].id
        self._look_due = time.monotonic() + self._pause(began)

    def _pause(self, began: float) -> float:
        return min(max(self._settings.poll, _REST * (time.monotonic() - began)), 5.0)

    def _ask_found(self) -> int:
        """Asks about what was found, as far as it is its turn; how many left UNKNOWN."""
        count = 0
        busy = {row.order for row in self._under_way.values() if row.order is not None}
        waiting, self._found = self._found, []
        for place, (row, due_at) in enumerate(waiting):
            if not self._has_room():
                self._found += waiting[place:]
                break
            if row.order in busy:
                self._found.append((row, due_at))
                continue
            count += self._decide_one(row, due_at)
            if row.id in self._under_way and row.order is not None:
                busy.add(row.order)
        if not self._found:
            self._look_due = 0.0 if waiting else self._look_due
        return count

    def _has_room(self) -> bool:
        return len(self._under_way) < self._settings.decide_threads and not self._stopping.is_set()

    def _decide_one(self, row: Pending, due_at: int) -> bool:
        def claim(local: LocalTransaction) -> bytes | None:
            if not self._rows.claim_decision(local, row.id, due_at, self._settings.decide_every):
                return None
            return self._rows.bodies(local, [row.id]).get(row.id)

        try:
            overdue = row.time_left is not None and row.time_left <= 0
            if overdue or row.retries >= self._settings.decisions:
                cause = (
                    "the deadline has passed without a decision"
                    if overdue
                    else f"still UNKNOWN after {row.retries} decisions"
                )
                # Unless an operator has it decided once more meanwhile.
                return self._store(row, OutboxState.MESSAGE_ERROR, cause, None, due_at)
            row.body = self._run(claim, LOCK_WAIT)
        except Exception as error:
            if is_locked(error):
                return False  # It is being confirmed just now.
            raise
        if row.body is not None:
            self._ask(row)
        return False

    def _ask(self, row: Pending) -> None:
        self._under_way[row.id] = row
        self._to_ask.put(_Asked(row))
        if self._callers < min(len(self._under_way), self._settings.decide_threads):
            self._callers += 1
            # Daemons: one that hangs does not keep the process.
            name = f"halfmq-decide-{self._callers}"
            threading.Thread(target=self._call, name=name, daemon=True).start()

    def _call(self) -> None:
        while (asked := self._to_ask.get()) is not None:
            try:
                asked.answer = self._answer(asked.row)
            except BaseException as error:
                # SystemExit as well: it would end this thread alone, without a word, and the row would stay asked.
                asked.answer = error
            self._answered.put(asked)
            self._signal.set()

    def _store_answers(self) -> int:
        """How many messages left UNKNOWN by what the callback said."""
        count = 0
        while True:
            try:
                asked = self._answered.get_nowait()
            except queue.Empty:
                return count
            # Whatever comes of it: it is due again after a while.
            del self._under_way[asked.row.id]
            try:
                count += self._store_answer(asked)
            except Exception as error:
                if not is_locked(error):
                    raise
                _log.warning(
                    "message %s is locked: what decide said is dropped, and asked again",
                    asked.row.message_id,
                    extra={"message_id": asked.row.message_id, "topic": asked.row.topic},
                )

    def _store_answer(self, asked: _Asked) -> bool:
        row, answer = asked.row, asked.answer
        if isinstance(answer, BaseException):
            about = {"message_id": row.message_id, "topic": row.topic}
            _log.warning("decide failed for message %s: %r; it is asked again", row.message_id, answer, extra=about)
            cause = f"{type(answer).__name__}: {answer}"
            self._run(lambda local: self._rows.undecided_yet(local, row.id, cause), LOCK_WAIT)
            return False
        assert answer is not None  # noqa: S101 - it is answered
        state, content = answer
        if state is OutboxState.UNKNOWN:
            return False
        cause_of_rollback = "decide said ROLLBACK" if state is OutboxState.LOCAL_ROLLBACK else None
        return self._store(row, state, cause_of_rollback, None if content is None else content.columns())

    def _answer(self, row: Pending) -> tuple[OutboxState, Content | None]:
        """What the user's callback says: the next state, and the content that is to be sent in place of the row's."""
        answer = self._decide(row.message())
        if isinstance(answer, Message):
            return OutboxState.LOCAL_COMMIT, content_of(answer, self._max_body, row.message_id)
        if not isinstance(answer, LocalTransactionState):
            msg = f"decide returned {answer!r}; it must return a LocalTransactionState or a Message"
            raise TypeError(msg)
        return _NEXT[answer], None

    def _store(
        self,
        row: Pending,
        state: OutboxState,
        cause: str | None,
        columns: dict[str, object] | None,
        due_at: int | None = None,
    ) -> bool:
        return self._run(lambda local: self._rows.decided(local, row.id, state, cause, columns, due_at), LOCK_WAIT)
