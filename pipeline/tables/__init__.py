"""Tables of business databases as Spark tables: one statement for all readers, run by any available one."""

from __future__ import annotations

from pipeline.tables.database import Database
from pipeline.tables.reading import READERS, columns_of, read_table
from pipeline.tables.times import TimeColumn

__all__ = ["READERS", "Database", "TimeColumn", "columns_of", "read_table"]
