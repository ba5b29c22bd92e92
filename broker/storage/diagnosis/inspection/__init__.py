"""What a database tells about itself: a class for each, as for dialects."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.storage.diagnosis.inspection.mariadb import MariaDBInspection
from broker.storage.diagnosis.inspection.mysql import MySQLInspection
from broker.storage.diagnosis.inspection.sqlite import SQLiteInspection

if TYPE_CHECKING:
    from collections.abc import Mapping

    from broker.storage.diagnosis.inspection.base import Inspection

INSPECTIONS: Mapping[str, Inspection] = {
    "mysql": MySQLInspection(),
    "mariadb": MariaDBInspection(),
    "sqlite": SQLiteInspection(),
}
"""By the name of the dialect."""
