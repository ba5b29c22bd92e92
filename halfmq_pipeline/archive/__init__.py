"""The archive: topics as Parquet files whose names say which messages they hold.

    <folder>/topic=orders/date=2026-11-22/q0003-00000000000000000000-00000000000000250000.parquet

The file holds the messages of queue 3 at offsets [0, 250000), all of them visible since that day (UTC). Offsets have no
gaps and never change, so the names alone tell what is missing: the archive is its own checkpoint. Writing a range again
gives the same file. Files may overlap after a crash, but readers see each message once: of two files with the same
message the longer one counts (``chosen``), and compaction deletes the other.
"""

from __future__ import annotations

from halfmq_pipeline.archive.compaction import Compaction
from halfmq_pipeline.archive.job import Archive
from halfmq_pipeline.archive.reading import read_archive

__all__ = ["Archive", "Compaction", "read_archive"]
