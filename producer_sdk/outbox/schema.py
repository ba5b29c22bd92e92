"""The outbox's two tables: the messages, and whose turn it is to relay them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from client_core.local_database import Column, Index, Kind, Table

if TYPE_CHECKING:
    import sqlalchemy as sa

__all__ = ["PENDING", "OutboxSchema"]

PENDING = "pending"
"""The index that finds the rows of a state in the order of their numbers."""

_MESSAGES = (
    Column("id", Kind.SERIAL),
    Column("message_id", Kind.ID),
    Column("topic", Kind.NAME),
    Column("message_group", Kind.NAME, nullable=True),
    Column("state", Kind.WORD),
    Column("retries", Kind.NUMBER),
    # When the row is due: to be sent, or to be decided.
    Column("due_at", Kind.NUMBER),
    Column("deadline", Kind.NUMBER, nullable=True),
    # When the message may have been stored first, without an answer that says so.
    Column("tried_at", Kind.NUMBER, nullable=True),
    Column("created_at", Kind.NUMBER),
    Column("changed_at", Kind.NUMBER),
    # In which state it failed.
    Column("failed_in", Kind.WORD, nullable=True),
    Column("cause", Kind.TEXT, nullable=True),
    Column("headers", Kind.TEXT, nullable=True),
    Column("size", Kind.NUMBER),
    Column("body", Kind.BODY),
)
_TURN = (
    Column("name", Kind.WORD),
    Column("identity", Kind.ID),
    Column("owner", Kind.NAME),
    Column("token", Kind.NUMBER),
    Column("until_at", Kind.NUMBER),
    # What the owner may be sending: numbers of rows, and since when.
    Column("sending_from", Kind.NUMBER, nullable=True),
    Column("sending_to", Kind.NUMBER, nullable=True),
    Column("sending_since", Kind.NUMBER, nullable=True),
)


class OutboxSchema:
    """What an outbox says of its tables."""

    def __init__(self, table: str, home: str = "") -> None:
        """Takes the name of the table of messages; the other one is called the same, and ``_relay``.

        Args:
            table: The name.
            home: The schema of a name without one.

        Raises:
            ConfigurationError: It is no name.
        """
        self.messages = Table(
            table,
            _MESSAGES,
            indexes=(Index(PENDING, ("state", "id", "due_at")), Index("message", ("message_id",), unique=True)),
            home=home,
        )
        self.turn = Table(f"{table}_relay", _TURN, home=home)

    @property
    def pending_index(self) -> str:
        """The name of the index that finds the rows of a state."""
        return self.messages.index_name(PENDING)

    def sql(self, dialect: str) -> str:
        """The statements that create the tables, for migrations that are written by hand.

        Args:
            dialect: ``mysql``, ``mariadb``, ``postgresql`` or ``sqlite``.
        """
        return f"{self.messages.sql(dialect)};\n{self.turn.sql(dialect)}"

    def add_tables(self, metadata: sa.MetaData) -> tuple[sa.Table, sa.Table]:
        """Adds the tables to a MetaData of SQLAlchemy, so that ``create_all`` and Alembic know them."""
        return self.messages.to_metadata(metadata), self.turn.to_metadata(metadata)
