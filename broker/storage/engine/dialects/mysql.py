"""MySQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.storage.engine.cluster.role import Kind
from broker.storage.engine.dialects.servers import Server

if TYPE_CHECKING:
    from broker.storage.engine.dialects.base import Session, Target


class MySQL(Server):
    """MySQL 8.4 and newer."""

    name = "mysql"
    oldest = (8, 4)
    kinds = frozenset({Kind.ALONE, Kind.GROUP})
    # There is no timeout for idle transactions: it applies to all idle time of writing sessions.
    idle_setting = "wait_timeout"
    row = "ROW"

    @classmethod
    def has_version(cls, version: str) -> bool:
        """Any version that does not contain MariaDB's name."""
        return "mariadb" not in version.lower()

    def given(self, table: str, rows: str) -> tuple[str, str]:
        """A derived table: VALUES cannot stand in WITH here."""
        return "", f"(VALUES {rows}) AS {table}"

    def idle_limit(self, target: Target, *, reading: bool) -> float:
        """Well before the server ends an idle writing session."""
        return target.hold_limit / 2 if target.hold_limit and not reading else super().idle_limit(target, reading=False)

    def prepare(
        self, session: Session, target: Target, *, reading: bool, answer_timeout: float | None, lock_wait: int | None
    ) -> None:
        """A reading session holds no locks, and may be idle."""
        if reading and target.hold_limit:
            session.run("SET SESSION wait_timeout = DEFAULT")
        super().prepare(session, target, reading=reading, answer_timeout=answer_timeout, lock_wait=lock_wait)
