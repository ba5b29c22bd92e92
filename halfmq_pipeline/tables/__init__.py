"""Tables of business databases as Spark tables: one statement for all readers, run by any available one."""

from __future__ import annotations

from halfmq_pipeline.tables.database import Database
from halfmq_pipeline.tables.reading import READERS, columns_of, read_table
from halfmq_pipeline.tables.times import TimeColumn

__all__ = ["READERS", "Database", "TimeColumn", "columns_of", "read_table"]
