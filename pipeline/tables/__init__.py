"""Tables of business databases as Spark's: one statement for all readers, carried over by whichever is there."""

from __future__ import annotations

from pipeline.tables.database import Database
from pipeline.tables.reading import READERS, columns_of, read_table
from pipeline.tables.times import TimeColumn

__all__ = ["READERS", "Database", "TimeColumn", "columns_of", "read_table"]
