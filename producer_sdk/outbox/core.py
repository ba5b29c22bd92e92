"""What both forms of the outbox are: validation, and what is done in a transaction."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from client_core.arguments import check_count, check_kind
from client_core.errors import ConfigurationError
from client_core.local_database import VerifiedDatabases, asking_for
from client_core.times import as_duration
from producer_sdk.outbox.content import content_of
from producer_sdk.outbox.limits import MAX_BODY
from producer_sdk.outbox.operating import Operating
from producer_sdk.outbox.rows import OutboxRows
from producer_sdk.outbox.schema import OutboxSchema
from producer_sdk.outbox.settings import RelaySettings
from producer_sdk.outbox.states import OutboxState
from producer_sdk.outbox.submissions import SubmissionRows, refuse_without_table

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from client_core.local_database import LocalTransaction
    from client_core.message import Message
    from client_core.times import Span
    from producer_sdk.outbox.content import Content

__all__ = ["OutboxCore", "seconds_of"]

_log = logging.getLogger("halfmq.relay")


class OutboxCore(OutboxSchema):
    """The tables, the settings, and the writes of one outbox."""

    def __init__(
        self,
        table: str,
        settings: RelaySettings | None,
        deadline: Span | None,
        decide_after: Span,
        max_body: int,
        *,
        home: str,
        same_server: bool = False,
        broker_tables: str = "",
    ) -> None:
        """Checks the settings.

        Raises:
            ConfigurationError: One of them cannot be.
        """
        super().__init__(table, home)
        check_kind("same_server", same_server, bool)
        if broker_tables and not same_server:
            msg = "broker_tables names tables of a broker on the same server: set same_server=True too, or leave it out"
            raise ConfigurationError(msg, field="broker_tables")
        self.same_server = same_server
        check_kind("settings", settings, RelaySettings)
        check_count("max_body", max_body, 15 << 20)
        self.settings = settings or RelaySettings()
        self.max_body = max_body
        self._deadline = None if deadline is None else seconds_of("deadline", deadline)
        self._decide_after = seconds_of("decide_after", decide_after)
        self.rows = SubmissionRows(broker_tables, home) if same_server else OutboxRows(self)
        self.operating = Operating(self)
        self._verified = VerifiedDatabases()

    @property
    def own_rows(self) -> OutboxRows:
        """The statements on the outbox's own table.

        Raises:
            ConfigurationError: It has none.
        """
        if not isinstance(self.rows, OutboxRows):
            refuse_without_table()
        return self.rows

    def content(self, message: Message) -> Content:
        """Validates a message; see content_of."""
        return content_of(message, self.max_body)

    def write(
        self, local: LocalTransaction, contents: list[Content], identity: str, times: tuple[float | None, float | None]
    ) -> None:
        """Inserts messages in a transaction that is joined.

        Args:
            local: The transaction.
            contents: The messages.
            identity: That of the outbox that is relayed.
            times: Seconds after which it is decided, None: it is to be sent; and until its deadline.
        """
        wait, deadline = times
        state = OutboxState.LOCAL_COMMIT if wait is None else OutboxState.UNKNOWN
        for content in contents:
            self.rows.put(local, content, state, wait or 0.0, deadline)
        # After the writing: on SQLite, a transaction that reads before may find its view too old to write.
        if not self._verified.has(local):
            self.rows.verify(local, identity)
            self._verified.add(local)

    def asking(self, local: LocalTransaction) -> AbstractContextManager[None]:
        """Around what reads or changes the outbox's own table: says how to get it where it is not there."""
        return asking_for(self.messages.path, lambda: local.dialect)

    def warn_of_tables(self, error: Exception) -> None:
        """The tables cannot be read when a producer begins; what comes later tries again.

        Raises:
            ConfigurationError: Trying again cannot help.
        """
        if isinstance(error, ConfigurationError) and error.field != "table":
            raise error
        tables = "broker's table" if self.same_server else "outbox's tables"
        _log.warning("the %s cannot be reached now: %s; trying again", tables, error)

    def forget(self) -> None:
        """The tables may be others than before."""
        self._verified = VerifiedDatabases()

    def times(self, decide_after: Span | None, deadline: Span | None) -> tuple[float | None, float | None]:
        """Both in seconds, with the outbox's own deadline where there is no other."""
        return (
            None if decide_after is None else seconds_of("decide_after", decide_after),
            self._deadline if deadline is None else seconds_of("deadline", deadline),
        )

    @property
    def announced(self) -> float:
        """Seconds after which an announced message is decided, unless it is told otherwise."""
        return self._decide_after


def seconds_of(name: str, span: Any) -> float:
    """Seconds of a duration.

    Raises:
        ConfigurationError: It is none, negative, or not finite.
    """
    try:
        as_duration(name, span)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(str(error), field=name) from None
    return span.total_seconds() if isinstance(span, timedelta) else float(span)


DEFAULT_TABLE = "halfmq_outbox"
DEFAULT_DECIDE_AFTER = 60.0
__all__ += ["DEFAULT_DECIDE_AFTER", "DEFAULT_TABLE", "MAX_BODY"]
