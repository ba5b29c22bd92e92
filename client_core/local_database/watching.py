"""Looks at each statement of a block: whether the local transaction is still the one that the block began.

What a library knows of its transaction is not enough: statements commit by themselves (DDL on MySQL and MariaDB, COMMIT
as a text, procedures), and servers roll back by themselves (a deadlock whose error is caught). So

* what always ends a transaction is refused before it runs;
* what may end it has a savepoint set before it, which is gone afterwards if it did;
* after a statement that failed, the server is asked whether the transaction is still open.

The usual block has none of them, and costs no statement. What runs on the driver's connection beside the library is
seen only by the state that the driver keeps, or where the driver itself can be listened to (listening.py).
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from client_core.errors import LocalTransactionEnded
from client_core.local_database.dialects import Failure, first_line_of
from client_core.local_database.drivers import in_transaction, is_aborted, session_of
from client_core.local_database.statements import RELEASE, ROLLBACK_TO, SAVEPOINT, ending_of, forms_of, is_harmless
from client_core.local_database.transactions import LocalTransaction

if TYPE_CHECKING:
    import re
    from collections.abc import Callable

    from client_core.local_database.dialects import Dialect

__all__ = ["Watch", "WatchedTransaction", "would_end"]


class Watch:
    """Looks at the statements of one block."""

    def __init__(
        self, dialect: Dialect, run: Callable[[str], list[tuple[Any, ...]]], driver_connection: Callable[[], Any]
    ) -> None:
        """Begins to look.

        Args:
            dialect: The database.
            run: Runs a statement that is not looked at; its rows, if it has some.
            driver_connection: The connection of the driver.
        """
        self._dialect = dialect
        self._run = run
        self._driver_connection = driver_connection
        self.takes_several = True
        """Whether the server may take several statements at once, separated by semicolons."""
        self._was_open = bool(in_transaction(driver_connection()))
        self._session = session_of(driver_connection())
        self._has_ended = False
        self._is_doubtful = False
        self._is_running = False
        """A statement is, or it ended in a way that was not told."""
        self._has_failed = False
        """The last statement did."""
        self._failures = 0
        self._error: BaseException | None = None
        self._mark = ""
        """The savepoint before the last statement."""
        self._sent = 0
        self.is_ending = False
        """The end of the block commits: what runs until then is looked at once more."""
        self._savepoints: list[tuple[str, int]] = []
        """Those that are set, in their order, and how many messages were sent before each."""
        self.has_lost_messages = False
        """Whether a savepoint was rolled back after a message was sent in it."""

    def before(self, statement: object) -> None:
        """A statement is to run.

        Raises:
            LocalTransactionEnded: It would end the transaction, or one before it did; it must not run.
        """
        self._look_back()
        if self._has_ended:
            raise LocalTransactionEnded(self._how_it_ended())
        text = statement if isinstance(statement, str) else ""
        self._is_running = True
        self._error = None
        if is_harmless(text, self._dialect.name, takes_several=self.takes_several):
            return
        forms = forms_of(text, self._dialect.name)
        text = forms[0]
        if found := SAVEPOINT.match(text):
            name = self._name(found)
            if self._dialect.name == "mysql":
                # There a later one of the same name takes the place of the earlier one.
                self._savepoints = [each for each in self._savepoints if each[0] != name]
            self._savepoints.append((name, self._sent))
        elif found := ROLLBACK_TO.match(text):
            place = self._place_of(self._name(found))
            if place is None:
                self._is_running = False
                raise would_end("ROLLBACK TO a savepoint that was set before the block")
            del self._savepoints[place + 1 :]
            self.has_lost_messages |= self._sent > self._savepoints[place][1]
        elif found := RELEASE.match(text):
            place = self._place_of(self._name(found))
            if place is not None:
                del self._savepoints[place:]
        else:
            self._refuse(forms)
            self._set_mark()

    def _how_it_ended(self) -> str:
        error = self._error
        if error is not None and self._dialect.name == "mysql" and self._dialect.may_roll_back(error, lambda _: [(0,)]):
            return (
                f"the server rolled the local transaction back ({first_line_of(error)}): let the error leave the "
                "block, and run all of it again"
            )
        return _WAS_ENDED

    def after(self) -> None:
        """The statement has run; its rows may still fail."""
        self._is_running = False
        self._was_open = self._was_open or bool(self._is_open())

    def failed(self, error: BaseException) -> None:
        """The statement has failed, or its rows have."""
        if isinstance(error, LocalTransactionEnded):
            return  # It was refused here, and has not run.
        self._is_running = False
        self._has_failed = True
        self._error = error

    def sent(self) -> None:
        """A message is sent, outside of the transaction."""
        self._sent += 1

    def unsent(self) -> None:
        """The last one was refused: nobody has it."""
        self._sent -= 1

    def _look_back(self) -> None:
        """Finds out what the last statement did."""
        mark, has_failed = self._mark, self._has_failed or self._is_running
        self._mark, self._has_failed, self._is_running = "", False, False
        if mark:
            self._look_for(mark)
        elif has_failed:
            self._look_at_failure()
        is_open = self._is_open()
        if self._is_over(is_open):
            self._has_ended = True
        elif is_open:
            self._was_open = True

    def ended(self) -> None:
        """The driver was told to end the transaction."""
        self._has_ended = True

    def has_ended_by_now(self) -> bool:
        """Whether the transaction was ended; asks the server where the last statement leaves that open."""
        if (self._mark or self._has_failed) and not self._is_running:
            self._look_back()
        return self.has_ended()

    def has_ended(self) -> bool:
        """Whether the transaction is known to have been ended; asks no server."""
        return self._has_ended or self._is_over(self._is_open())

    def is_whole(self, run: Callable[[str], object]) -> bool | None:
        """Whether what is open is the transaction that the block began, all of it; None: that cannot be told.

        Args:
            run: Runs a statement whose error is to be raised.

        Raises:
            Exception: The transaction cannot go on, so that it is rolled back.
        """
        self._look_back()
        if self._dialect.name == "postgresql" and (self._failures or is_aborted(self._driver_connection())):
            # One that is aborted refuses any statement, but not a COMMIT, which rolls back.
            run("SELECT 1")
        if self._has_ended:
            return False
        return None if self._is_doubtful else True

    def _name(self, found: re.Match[str]) -> str:
        name = found[1].rstrip(";")
        plain = name.strip('`"[]')
        return plain if self._dialect.name == "postgresql" and name.startswith('"') else plain.lower()

    def _place_of(self, name: str) -> int | None:
        """The last savepoint of a name, as every database means it."""
        places = [place for place, (each, _) in enumerate(self._savepoints) if each == name]
        return places[-1] if places else None

    def _is_over(self, is_open: bool | None) -> bool:
        """By what the driver tells, which is that of now only."""
        return (self._was_open and is_open is False) or session_of(self._driver_connection()) != self._session

    def _is_open(self) -> bool | None:
        return in_transaction(self._driver_connection())

    def before_commit(self) -> None:
        """The COMMIT of the block's end is to be sent; a library may have run more statements since is_whole.

        Raises:
            LocalTransactionEnded: What is open is not the transaction of the block any more.
        """
        was_doubtful = self._is_doubtful
        known = self.is_whole(self._run)
        if known is False or (known is None and not was_doubtful):
            msg = (
                "the local transaction was ended by the server while it was to be committed, in a hook that caught the "
                "error: have the error raised, it rolls back"
            )
            raise LocalTransactionEnded(msg)

    def _refuse(self, forms: tuple[str, ...]) -> None:
        for form in forms:
            words = ending_of(form, self._dialect.name)
            if words is not None:
                self._is_running = False
                raise would_end(words)

    def _set_mark(self) -> None:
        name = f"halfmq_{uuid.uuid4().hex}"
        try:
            self._run(f"SAVEPOINT {name}")
        except Exception:
            self._is_doubtful = True
            self._failures += 1
        else:
            self._mark = name

    def _look_for(self, mark: str) -> None:
        try:
            self._run(f"RELEASE SAVEPOINT {mark}")
        except Exception as error:
            if self._dialect.failure_of(error) is Failure.NO_SAVEPOINT:
                self._has_ended = True
            else:
                # PostgreSQL keeps the transaction, aborted, and says so at the end.
                self._is_doubtful |= self._dialect.name != "postgresql"
                self._failures += 1

    def _look_at_failure(self) -> None:
        self._failures += 1
        if self._dialect.name != "mysql":
            return  # PostgreSQL keeps the transaction, aborted; the driver of SQLite tells.
        if self._is_open() is None:
            if self._error is not None and self._dialect.failure_of(self._error) is Failure.CONFLICT:
                self._has_ended = True
            else:
                self._is_doubtful |= self._error is None or self._dialect.may_roll_back(self._error, self._run)
            return
        try:
            # The answer to a statement that failed does not tell whether the transaction is still open.
            self._run("DO 0")
        except Exception:
            self._is_doubtful = True


class WatchedTransaction(LocalTransaction):
    """A transaction whose library lets its statements be looked at."""

    _watch: Watch | None = None

    def has_ended(self, is_gone: Callable[[], bool]) -> bool:
        """By what was seen."""
        return self.is_same() is False or (self._watch is not None and self._watch.has_ended_by_now())

    def sent(self) -> None:
        """Counted, as savepoints are."""
        if self._watch is not None:
            self._watch.sent()

    def unsent(self) -> None:
        """Not counted."""
        if self._watch is not None:
            self._watch.unsent()

    def has_lost_messages(self) -> bool:
        """By what was seen."""
        return self._watch is not None and self._watch.has_lost_messages


_WAS_ENDED = (
    "the local transaction was ended inside of its block, by a commit, a rollback, a statement that commits by itself, "
    "or the server: leave its end to the block, and what commits by itself out of it"
)


def would_end(what: str) -> LocalTransactionEnded:
    """The error of what is refused before it ends the transaction of a block."""
    msg = (
        f"{what} would end the local transaction inside of its block, and was not run: run it before or after the "
        "block, and leave commit and rollback to the end of the block"
    )
    return LocalTransactionEnded(msg)
