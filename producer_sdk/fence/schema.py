"""The fence's table for migrations; the same for both forms of the fence."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlalchemy as sa

    from producer_sdk.fence.rows import FenceRows

__all__ = ["FenceSchema"]


class FenceSchema:
    """What a fence says of its table."""

    rows: FenceRows

    def sql(self, dialect: str) -> str:
        """The statement that creates the table, for migrations that are written by hand.

        Args:
            dialect: ``mysql``, ``mariadb``, ``postgresql`` or ``sqlite``.
        """
        return self.rows.table.sql(dialect)

    def add_tables(self, metadata: sa.MetaData) -> sa.Table:
        """Adds the table to a MetaData of SQLAlchemy, so that ``create_all`` and Alembic know it."""
        return self.rows.table.to_metadata(metadata)
