"""The steps of a move, in their order. Any process may go on with a move that another one left."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, NamedTuple

from broker.domain.cell import HOME_NUMBER
from broker.errors import StorageUnavailable
from broker.storage.catalog.moves import MoveState, state_of
from broker.storage.moving import arriving, copying, home, sealing
from broker.storage.moving.copies import Copies
from broker.storage.moving.records import merge
from broker.storage.moving.refusals import MoveRefused, Why

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.storage.engine.session import Session
    from broker.storage.moving.databases import Databases
    from broker.storage.moving.home import Move
    from broker.storage.moving.planning import Plan

logger = logging.getLogger("halfmq.storage")

ATTEMPTS = 30
"""To seal while transactions without a verdict have messages outside; one a second."""
PAUSE = 1.0


class Ended(NamedTuple):
    """How a move ended.

    Attributes:
        moved: whether it came to the other cell.
        stood_still: seconds from the seal until brokers find it again; None: another process sealed it.
    """

    moved: bool
    stood_still: float | None = None


class Mover:
    """Moves topics, groups and sinks."""

    def __init__(
        self,
        databases: Databases,
        *,
        tell: Callable[[str], None] = lambda _: None,
        most_rows: int = sealing.MOST_ROWS,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """Takes the cells' databases, who is told of each step, and how many rows may be taken out by the seal."""
        self._databases = databases
        self._tell = tell
        self._most_rows = most_rows
        self._pause = pause
        self._sealed_at: float | None = None

    def begin(self, plan: Plan, told_by: str) -> Move:
        """Notes the move.

        Raises:
            MoveRefused: another one has not ended, or something is in another cell by now.
        """

        def note(session: Session) -> Move:
            return home.begin(session, plan.names, plan.source, plan.target, _now(session), told_by)

        def again(session: Session, before: Move) -> Move:
            return before if home.was_begun(session, before) else note(session)

        return self._databases.write(HOME_NUMBER, note, redo=again)

    def open_move(self) -> Move | None:
        """The move that has not ended."""
        return self._databases.read(HOME_NUMBER, home.open_move)

    def carry_on(self, move: Move) -> Ended:
        """Does what is left of a move. One that was given up is taken back.

        Raises:
            MoveRefused: it cannot go on. If it was sealed, or the copy differs, it is taken back; otherwise it is open.
                So is one that failed after the seal with an error that is no refusal.
            StorageUnavailable: a database does not answer; it stays as it is, and can go on later.
        """
        state = self._databases.write(
            move.target, lambda session: arriving.begin(session, move.number, move.names, _now(session))
        )
        if state is MoveState.COMING:
            state = self._bring(move)
        if state is MoveState.GIVEN_UP:
            self.give_up(move)
            return Ended(moved=False)
        return self._finish(move)

    def _bring(self, move: Move) -> MoveState:
        try:
            copies = Copies(self._databases, move, self._tell)
            if self._state_in_source(move) is not MoveState.SEALED:
                copies.refuse_same_ids()
                copies.ahead()
                self._seal(move, copies)
            copies.rest()
            self._decide(move, copies)
        except MoveRefused as refusal:
            if refusal.why is Why.MOVE_DECIDED:
                return MoveState.COME
            if refusal.why is Why.MOVE_GIVEN_UP:
                return MoveState.GIVEN_UP
            # Nothing stands still for something that an operator has to look at first.
            if refusal.why is Why.COPY_DIFFERS or self._state_in_source(move) is MoveState.SEALED:
                self.give_up(move)
            raise
        except StorageUnavailable:
            raise
        except Exception as error:
            if self._state_in_source(move) is not MoveState.SEALED:
                raise
            return self._taken_back(move, error)
        return MoveState.COME

    def _taken_back(self, move: Move, error: Exception) -> MoveState:
        """Takes a move back that failed in a way that nobody foresaw, unless it is decided."""
        logger.error("The move %d failed after its seal.", move.number, exc_info=error)
        try:
            self.give_up(move)
        except MoveRefused as refusal:
            if refusal.why is Why.MOVE_DECIDED:
                return MoveState.COME
            raise
        raise MoveRefused(
            f"The move {move.number} failed and was taken back: all is where it was before. Please report this:"
            f" {type(error).__name__}: {error}",
            Why.FAILED,
            field="move",
        ) from error

    def _state_in_source(self, move: Move) -> MoveState | None:
        return self._databases.read(move.source, lambda session: state_of(session, move.number))

    def _seal(self, move: Move, copies: Copies) -> None:
        for left in reversed(range(ATTEMPTS)):
            copies.refuse_same_ids()
            self._databases.read(
                move.source, lambda session: sealing.refuse_too_many(session, move.names, self._most_rows)
            )
            began = time.monotonic()
            try:
                self._databases.write(
                    move.source,
                    lambda session: sealing.seal(session, move.number, move.names, _now(session), self._most_rows),
                )
            except MoveRefused as refusal:
                if refusal.why is not Why.TRANSACTIONS_APART or not left:
                    raise
                self._tell(refusal.message)
                self._pause(PAUSE)
                copies.ahead()
            else:
                self._sealed_at = began
                self._tell(f"sealed in {time.monotonic() - began:.2f} s")
                return

    def _decide(self, move: Move, copies: Copies) -> None:
        ends, groups = copies.ends(), copies.groups
        began = time.monotonic()
        count = self._databases.write(
            move.target,
            lambda session: arriving.decide(
                session, move.number, move.names, copies.sealed, ends, groups, _now(session)
            ),
        )
        self._tell(f"decided: {count} rows came in {time.monotonic() - began:.2f} s")

    def _finish(self, move: Move) -> Ended:
        self._databases.write(HOME_NUMBER, lambda session: home.place_anew(session, move))
        stood_still = None if self._sealed_at is None else time.monotonic() - self._sealed_at
        self._databases.write(move.source, lambda session: sealing.leave(session, move.number, _now(session)))
        self._databases.write(HOME_NUMBER, lambda session: home.end(session, move, home.DONE, _now(session)))
        return Ended(moved=True, stood_still=stood_still)

    def give_up(self, move: Move) -> None:
        """Takes a move back.

        Raises:
            MoveRefused: it is decided.
        """
        number = move.number
        state = self._databases.write(move.target, lambda session: arriving.give_up(session, number, _now(session)))
        if state is MoveState.COME:
            raise MoveRefused(
                f"The move {number} is decided: all of it is in the other cell. End it with"
                " `halfmq cells move --resume`, and move it back.",
                Why.MOVE_DECIDED,
                field="move",
            )
        self._databases.write(move.source, lambda session: sealing.unseal(session, number, _now(session), merge))
        self._databases.write(HOME_NUMBER, lambda session: home.leave_placed(session, move))
        copied = self._databases.read(move.target, lambda session: copying.copied_queues(session, number))
        for queue in sorted(copied):
            while self._databases.write(move.target, lambda session: copying.drop(session, number, queue, state)):  # noqa: B023
                pass
        self._databases.write(move.target, lambda session: arriving.forget_copied(session, number))
        self._databases.write(HOME_NUMBER, lambda session: home.end(session, move, home.GIVEN_UP, _now(session)))


def _now(session: Session) -> int:
    return session.dialect.now(session)
