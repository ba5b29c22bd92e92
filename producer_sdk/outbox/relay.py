"""The relay: sends the rows of an outbox, in order per message group, each into the log exactly once.

Of all relays of an outbox one has the turn. It reads pending rows, sends them in batches under their message ids, and
deletes them (or keeps them as GLOBAL_COMMIT). Where it dies in between, the next one sends the same rows under the same
ids again, and brokers store them once.

One thread works on the database; the calls of the target run in a few others.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from typing import TYPE_CHECKING

from client_core.errors import RequestRefused
from client_core.ids import MOST_IDS
from client_core.local_database import text_of
from client_core.threads import LastingThreads, Wakeup
from producer_sdk.outbox.pending import PendingRows
from producer_sdk.outbox.planning import Batch
from producer_sdk.outbox.reading import SHORTEST_REST, Reading
from producer_sdk.outbox.settling import Becomes, Ended, Settling
from producer_sdk.outbox.states import OutboxState
from producer_sdk.outbox.target import NotTried
from producer_sdk.outbox.turn import Turn, TurnLost
from producer_sdk.outbox.working import LOCK_WAIT, is_locked

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from client_core.local_database import LocalTransaction
    from client_core.message import Message
    from producer_sdk.outbox.deciding import Decider
    from producer_sdk.outbox.pending import Pending
    from producer_sdk.outbox.schema import OutboxSchema
    from producer_sdk.outbox.settings import RelaySettings
    from producer_sdk.outbox.target import RelayTarget
    from producer_sdk.outbox.working import OpensDatabase, RunsWork

__all__ = ["Relay"]

_log = logging.getLogger("halfmq.relay")
_JITTER = random.SystemRandom()

_CLEAN_EVERY = 5.0
_CLEAN_ALL_EVERY = 60.0
"""Seconds after which old rows are looked for from the first number on: one may have come behind what is gone."""
_CLEAN_AT_ONCE = 1000
_LAST = 2.0
"""Seconds that a stop waits for what was written before it."""
_END = 3.0
"""Seconds that a stop waits for calls of the target."""


class Relay:
    """Relays an outbox until it is stopped; ``run`` in the calling thread, ``start`` in one of its own."""

    def __init__(
        self,
        database: OpensDatabase,
        schema: OutboxSchema,
        target: RelayTarget,
        settings: RelaySettings,
        decider: Decider | None = None,
    ) -> None:
        """Starts nothing.

        Args:
            database: Opens the database.
            schema: The tables.
            target: Where to send.
            settings: How it works.
            decider: Decides about messages in UNKNOWN; None: they wait.
        """
        self._database = database
        self._run: RunsWork
        self._rows = PendingRows(schema)
        self._target = target
        self._settings = settings
        self._decider = decider
        self.turn = Turn(schema, settings.lease)
        self.has_turn = False
        self.turns = 0
        """How often it took the turn."""
        self.counts = {"sent": 0, "failed": 0, "error": 0}
        """Messages by what became of them."""
        self._reading: Reading
        self._settling: Settling
        self._signal = Wakeup()
        self._stopping = threading.Event()
        self._idle = threading.Event()
        self._idle_for = -1
        self._wakes = 0
        self._thread: threading.Thread | None = None
        self._calls: LastingThreads | None = None
        self._under_way: dict[Future[Sequence[Exception | None]], tuple[list[Pending], float]] = {}
        self._next: list[Pending] = []
        self._cleaned: dict[OutboxState, int] = {}
        self._failures = 0
        self._pause_until = 0.0
        self._renewed_at = 0.0
        self._clean_due = self._clean_all_due = 0.0
        self._said: dict[str, float] = {}

    @property
    def failures(self) -> int:
        """Calls of the target that failed since the last one that did not."""
        return self._failures

    def start(self) -> None:
        """Begins, in a thread of its own."""
        self._thread = threading.Thread(target=self.run, name="halfmq-relay", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """There are new rows: it looks at once."""
        self._wakes += 1
        self._signal.set()

    def stop(self, timeout: float = _END + 5.0) -> None:
        """Ends it: what this process wrote last is sent, if that can be soon, then the turn is given back."""
        if self._thread is not None:
            self.wake()
            wakes, until = self._wakes, time.monotonic() + _LAST
            # What was set for an earlier look says nothing of what was written since.
            while self._idle_for < wakes and self._idle.wait(until - time.monotonic()):
                self._idle.clear()
        self._stopping.set()
        self._signal.set()
        if self._thread is not None:
            self._thread.join(timeout)

    def request_stop(self) -> None:
        """Has ``run`` return; for signal handlers."""
        self._stopping.set()
        self._signal.set()

    def run(self) -> None:
        """Relays until ``stop`` is called; outlives failures of the database and of the target."""
        self._calls = LastingThreads(self._settings.in_flight, thread_name_prefix="halfmq-relay-send")
        if self._decider is not None:
            self._decider.start(self.wake)
        with self._database() as self._run:
            self._relay()

    def _relay(self) -> None:
        failures = 0
        try:
            while not self._stopping.is_set():
                try:
                    wait = self._step()
                    failures = 0
                except TurnLost:
                    self._forget()
                    self._say("another relay has taken over; this one waits")
                    wait = self._settings.poll
                except Exception as error:
                    failures += 1
                    self._say(f"the outbox cannot be relayed now: {text_of(error)}; trying again")
                    # Who has waited for a lock has waited already.
                    wait = self._settings.poll if is_locked(error) else self._backoff(failures)
                self._signal.wait(wait)
        finally:
            self._end()

    def _step(self) -> float:
        """Does what can be done now; seconds to wait for something to happen."""
        wakes = self._wakes
        if not self.has_turn:
            wait = self._take_turn()
            if not self.has_turn:
                self._is_idle(wakes)
                return wait
        self._collect()
        # What was planned already, if an error came in between.
        self._next = self._next or self._next_rows()
        now = time.monotonic()
        if self._next or self._settling.has_new or self._is_renewal_due() or now >= (self._settling.due or now + 1):
            self._settle()
        if self._next:
            self._send(self._next)
            return 0.0
        if now >= self._clean_due:
            self._clean()
        if self._reading.has_more and self._may_send():
            return 0.0
        if wakes == self._wakes and (not self._under_way or self._is_hopeless()):
            # Or nothing can be sent just now.
            self._is_idle(wakes)
        return self._wait()

    def _is_idle(self, wakes: int) -> None:
        """There is nothing to send of what was written before it was woken so often."""
        self._idle_for = wakes
        self._idle.set()

    # What is read

    def _take_turn(self) -> float:
        began = time.monotonic()
        mine, seconds, held = self._run(lambda local: self.turn.take(local, self._rows.note_tried), LOCK_WAIT)
        if not mine:
            # Also by a relay that gave its turn back, which others hear of by looking.
            return min(seconds, self._settings.lease / 4)
        self._renewed_at, self.has_turn = began, True
        self.turns += 1
        self._reading = Reading(self._run, self._rows, self._settings)
        self._settling = Settling(self._run, self._rows, self.turn, keep=self._settings.keep > 0, backoff=self._backoff)
        # What the last relay may have sent is not sent before that is noted.
        self._reading.planner.begin(Batch(held))
        self._settling.add(Ended(row, Becomes.TRIED, "", began - seconds) for row in held)
        _log.info("relaying the outbox as %s", self.turn.owner, extra={"client_id": self.turn.owner})
        return 0.0

    def _next_rows(self) -> list[Pending]:
        if not self._may_send():
            return []
        batch = self._reading.next(self._has_other_work)
        now = time.monotonic()
        self._settling.add(Ended(row, Becomes.ERROR, reason, now) for row, reason in batch.overdue)
        return batch.rows

    def _may_send(self) -> bool:
        return (
            len(self._under_way) < self._settings.in_flight
            and time.monotonic() >= self._pause_until
            and not self._settling.is_full
        )

    def _has_other_work(self) -> bool:
        return (
            self._stopping.is_set()
            or self._settling.has_new
            or any(call.done() for call in self._under_way)
            or self._is_renewal_due()
        )

    def _is_hopeless(self) -> bool:
        """Whether nothing can be sent soon, as far as is known: what waits for it waits for nothing."""
        return self._failures > 0 or bool(getattr(self._target, "is_failing", False))

    def _is_renewal_due(self) -> bool:
        return time.monotonic() >= self._renewed_at + self._settings.lease / 3

    # What is sent

    def _send(self, rows: list[Pending]) -> None:
        large = [row.id for row in rows if row.body is None]
        if large:
            bodies = self._run(lambda local: self._rows.bodies(local, large))
            for row in rows:
                row.body = row.body if row.body is not None else bodies.get(row.id)
            gone = [row for row in rows if row.body is None]
            if gone:  # Deleted by hand.
                self._reading.planner.ended(gone, gone)
                self._next = rows = [row for row in rows if row.body is not None]
                if not rows:
                    return
        assert self._calls is not None  # noqa: S101 - run() made it
        self._next = []
        call = self._calls.submit(self._call_target, rows, self.turns)
        self._under_way[call] = rows, self._renewed_at
        call.add_done_callback(lambda _: self._signal.set())

    def _call_target(self, rows: list[Pending], turn: int) -> Sequence[Exception | None]:
        def may_send() -> bool:
            """False after this process stood still: the turn may be another's."""
            held = self.has_turn and self.turns == turn
            return held and time.monotonic() <= self._renewed_at + self._settings.lease / 2

        if not may_send():
            return [NotTried("the relay stood still")] * len(rows)
        outcomes, messages = _messages_of(rows)
        if not messages:
            return outcomes
        try:
            found = self._target.send(messages, may_send)
            if len(found) != len(messages):
                msg = f"the target gave {len(found)} outcomes for {len(messages)} messages"
                raise RuntimeError(msg)
        except Exception as error:
            found = [error] * len(messages)
        left = iter(found)
        return [next(left) if outcome is None else outcome for outcome in outcomes]

    def _collect(self) -> None:
        for call in [each for each in self._under_way if each.done()]:
            rows, since = self._under_way.pop(call)
            outcomes = call.result()
            self._settling.add(Ended.of(row, each, since) for row, each in zip(rows, outcomes, strict=True))
            failed = self._rest_topics(rows, outcomes)
            # Where one topic alone is at fault, others go on.
            if failed == {row.topic for row in rows} and (
                len(failed) > 1 or getattr(self._target, "is_failing", False)
            ):
                self._failures += 1
                self._pause_until = time.monotonic() + self._backoff(self._failures)
                self._say(f"nothing can be sent now: {outcomes[0]}; trying again")
            else:
                self._failures, self._pause_until = 0, 0.0

    def _rest_topics(self, rows: list[Pending], outcomes: Sequence[Exception | None]) -> set[str]:
        """The topics of which nothing could be sent; they rest."""
        done: set[str] = set()
        causes: dict[str, Exception] = {}
        for row, outcome in zip(rows, outcomes, strict=True):
            if outcome is None or isinstance(outcome, RequestRefused):
                done.add(row.topic)
            elif not isinstance(outcome, NotTried):
                causes.setdefault(row.topic, outcome)
        for topic in done:
            self._reading.planner.wake_topic(topic)
        failed = causes.keys() - done
        for topic in failed:
            self._reading.planner.rest_topic(topic, self._backoff)
            self._say(f"topic {topic} takes no messages now: {causes[topic]}; trying again", topic=topic)
        return failed

    # What is written

    def _settle(self) -> None:
        """Renews the turn, notes what is about to be sent, and what became of what was."""
        began = time.monotonic()
        sending = [*self._under_way.values(), (self._next, began)]
        written = self._settling.write(sending)
        self._renewed_at = began
        planner = self._reading.planner
        errors: dict[str, list[Pending]] = {}
        for each in written:
            if (outcome := each.becomes.name.lower()) in self.counts:
                self.counts[outcome] += 1
            if each.becomes in {Becomes.SENT, Becomes.ERROR}:
                planner.seen.discard(each.row.id)
            if each.becomes is Becomes.ERROR:
                errors.setdefault(each.cause, []).append(each.row)
        # Only now: until it is written what became of them, they would be found as if they were new.
        planner.ended(
            [each.row for each in written], [each.row for each in written if each.becomes is not Becomes.SENT]
        )
        for cause, rows in errors.items():
            self._say(
                f"{len(rows)} messages are MESSAGE_ERROR, the first one {rows[0].message_id}: {cause}",
                message_ids=[row.message_id for row in rows[:MOST_IDS]],
            )
            for row in rows:
                if row.order is not None:
                    planner.stop_group(row.id, row.order)
        if first := self._settling.first_held:
            self._say(
                f"{self._settling.held} rows are locked by other transactions, the first one message"
                f" {first.row.message_id}: they and their message groups wait",
                message_id=first.row.message_id,
                topic=first.row.topic,
            )

    def _clean(self) -> None:
        keep = {OutboxState.LOCAL_ROLLBACK: self._settings.keep_rolled_back}
        keep[OutboxState.GLOBAL_COMMIT] = self._settings.keep
        began = time.monotonic()
        if began >= self._clean_all_due:
            self._cleaned, self._clean_all_due = {}, began + _CLEAN_ALL_EVERY

        def work(local: LocalTransaction) -> int:
            return self._rows.delete_old(local, keep, self._cleaned, _CLEAN_AT_ONCE)

        try:
            count = self._run(work, LOCK_WAIT)
        except Exception as error:
            if not is_locked(error):
                raise
            count = 0
        self._clean_due = time.monotonic() + (0.0 if count >= _CLEAN_AT_ONCE else _CLEAN_EVERY)

    # Waiting

    def _wait(self) -> float:
        now = time.monotonic()
        until = min(self._renewed_at + self._settings.lease / 3, now + self._settings.poll)
        if (due := self._reading.pass_due) is not None:
            until = min(until, max(due, now + SHORTEST_REST))
        if self._pause_until > now:
            until = min(until, self._pause_until)
        if (due := self._settling.due) is not None:
            until = min(until, due)
        return max(until - now, 0.001)

    def _backoff(self, failures: int) -> float:
        longest = self._settings.longest_backoff
        grown = min(self._settings.first_backoff * 2.0 ** min(failures - 1, 32), longest)
        return grown * _JITTER.uniform(0.5, 1.0)

    def _forget(self) -> None:
        """Another relay has the turn: what is under way goes on, and changes nothing here."""
        self.has_turn = False
        self._under_way, self._next = {}, []
        self._failures, self._pause_until = 0, 0.0

    def _end(self) -> None:
        if self._decider is not None:
            self._decider.stop()
        deadline = time.monotonic() + (0.0 if self._is_hopeless() else _END)
        for call, rows in list(self._under_way.items()):
            try:
                call.result(max(deadline - time.monotonic(), 0.0))
            except Exception as error:
                _log.warning(
                    "stopping with messages under way, which the next relay sends again: %s",
                    str(error) or "no answer yet",
                    extra={"message_ids": [row.message_id for row in rows[0][:MOST_IDS]]},
                )
        try:
            if self.has_turn:
                self._collect()
                self._next = []
                self._settle()
                self._run(self.turn.release, LOCK_WAIT)
        except Exception as error:
            text = "the turn could not be given back; it ends in %g s: %s"
            _log.warning(text, self._settings.lease, text_of(error), extra={"client_id": self.turn.owner})
        finally:
            self.has_turn = False
            if self._calls is not None:
                self._calls.shutdown(wait=False, cancel_futures=True)

    def _say(self, text: str, **about: object) -> None:
        """A warning, once a minute at most for each beginning."""
        key, now = text[:40], time.monotonic()
        if now - self._said.get(key, -60.0) >= 60.0:
            self._said = {each: at for each, at in self._said.items() if now - at < 60.0}
            self._said[key] = now
            _log.warning("%s", text, extra={"client_id": self.turn.owner, **about})


def _messages_of(rows: list[Pending]) -> tuple[list[Exception | None], list[Message]]:
    """The messages of rows, and why there is none for some of them: somebody changed the row by hand."""
    outcomes: list[Exception | None] = []
    messages: list[Message] = []
    stopped: set[tuple[str, str] | None] = set()
    for row in rows:
        try:
            if row.order is not None and row.order in stopped:
                outcomes.append(NotTried("one before it in its message group cannot be read"))
                continue
            messages.append(row.message())
            outcomes.append(None)
        except Exception as error:
            stopped.add(row.order)
            outcomes.append(RequestRefused(f"the row cannot be read: {error!r}"))
        row.body = b""
    return outcomes, messages
