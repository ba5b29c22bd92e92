"""The table of marks for migrations; the same for both forms."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlalchemy as sa

    from consumer_sdk.applied.marks import Marks

__all__ = ["MarksSchema"]


class MarksSchema:
    """What both forms say of their table."""

    marks: Marks

    def sql(self, dialect: str) -> str:
        """The statements that create the table, separated by semicolons, for migrations that are written by hand.

        Args:
            dialect: ``mysql``, ``mariadb``, ``postgresql`` or ``sqlite``.
        """
        return self.marks.table.sql(dialect)

    def add_tables(self, metadata: sa.MetaData) -> sa.Table:
        """Adds the table to a MetaData of SQLAlchemy, so that ``create_all`` and Alembic know it."""
        return self.marks.table.to_metadata(metadata)
