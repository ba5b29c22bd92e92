"""MySQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.storage.diagnosis.inspection.base import CannotLook
from broker.storage.diagnosis.inspection.servers import (
    MOST_TRANSACTIONS,
    SECOND,
    LockWait,
    ServerInspection,
    needing,
    variables,
)

if TYPE_CHECKING:
    from broker.storage.engine.session import Session


class MySQLInspection(ServerInspection):
    """MySQL: InnoDB's metrics, and the performance schema."""

    ended = frozenset({3024})

    def limit(self, session: Session, seconds: float) -> None:
        """For queries; it has no limit for others."""
        session.run(f"SET SESSION max_execution_time = {int(seconds * 1000)}")

    def history(self, session: Session) -> int:
        """One of InnoDB's metrics, which is on unless it was switched off."""
        with needing(session, "PROCESS", "*.*"):
            ((length, status),) = session.fetch(
                "SELECT count, status FROM information_schema.innodb_metrics WHERE name = 'trx_rseg_history_len'"
            )
        if status != "enabled":
            raise CannotLook("the metric trx_rseg_history_len is off", "SET GLOBAL innodb_monitor_enable = 'trx_rseg%'")
        return int(length)

    def lock_waits(self, session: Session) -> list[LockWait]:
        """By the performance schema's table of waits."""
        if variables(session, "performance_schema").get("performance_schema") == "OFF":
            raise CannotLook(
                "the performance schema is off", "set performance_schema = ON in my.cnf, and restart the server"
            )
        with needing(session, "SELECT", "performance_schema.*"):
            found = session.fetch(
                "SELECT r.trx_id, w.blocking_engine_transaction_id,"
                " TIMESTAMPDIFF(SECOND, r.trx_wait_started, NOW()) FROM performance_schema.data_lock_waits w"
                " JOIN information_schema.innodb_trx r ON r.trx_id = w.requesting_engine_transaction_id"
                f" LIMIT {MOST_TRANSACTIONS}"
            )
        return [LockWait(int(own), int(other), max(0, int(waits or 0)) * SECOND) for own, other, waits in found]

    def sessions_table(self, session: Session) -> str:
        """The performance schema's: the other one fails where a session's statement has characters of four bytes."""
        off = variables(session, "performance_schema").get("performance_schema") == "OFF"
        return f"{'information_schema' if off else 'performance_schema'}.processlist"
