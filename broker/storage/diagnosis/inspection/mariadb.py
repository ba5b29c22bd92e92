"""MariaDB."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.storage.diagnosis.inspection.servers import (
    MOST_TRANSACTIONS,
    SECOND,
    LockWait,
    ServerInspection,
    needing,
)

if TYPE_CHECKING:
    from broker.storage.engine.session import Session


class MariaDBInspection(ServerInspection):
    """MariaDB: InnoDB's tables of the information schema, and a status variable."""

    ended = frozenset({1969})

    def limit(self, session: Session, seconds: float) -> None:
        """For all statements."""
        session.run(f"SET SESSION max_statement_time = {seconds:f}")

    def history(self, session: Session) -> int:
        """A status variable, which needs no right."""
        return int(session.fetch("SHOW GLOBAL STATUS LIKE 'Innodb_history_list_length'")[0][1])

    def lock_waits(self, session: Session) -> list[LockWait]:
        """By InnoDB's own table of waits."""
        with needing(session, "PROCESS", "*.*"):
            found = session.fetch(
                "SELECT r.trx_id, w.blocking_trx_id, TIMESTAMPDIFF(SECOND, r.trx_wait_started, NOW())"
                " FROM information_schema.innodb_lock_waits w"
                " JOIN information_schema.innodb_trx r ON r.trx_id = w.requesting_trx_id"
                f" LIMIT {MOST_TRANSACTIONS}"
            )
        return [LockWait(int(own), int(other), max(0, int(waits or 0)) * SECOND) for own, other, waits in found]

    def sessions_table(self, session: Session) -> str:
        """That of the information schema."""
        del session
        return "information_schema.processlist"
