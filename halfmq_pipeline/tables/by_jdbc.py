"""Reading MySQL and MariaDB by a JDBC driver that is on Spark's class path."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from halfmq_pipeline.tables.database import Database
    from halfmq_pipeline.tables.selection import Selection

__all__ = ["driver_class", "load"]

_DRIVERS = ("com.mysql.cj.jdbc.Driver", "org.mariadb.jdbc.Driver")
ROWS_AT_A_TIME = 10_000


def driver_class(spark: SparkSession) -> str | None:
    """The available driver; None: there is none, or the session's Java cannot be queried."""
    java = getattr(spark, "_jvm", None)
    if java is None:
        return None
    loader = java.java.lang.Thread.currentThread().getContextClassLoader()
    for name in _DRIVERS:
        # A missing class is an error of py4j, whose class differs from case to case.
        try:
            loader.loadClass(name)
        except Exception:  # noqa: S112
            continue
        return name
    return None


def load(
    spark: SparkSession, database: Database, selection: Selection, pieces: Sequence[str], driver: str
) -> DataFrame:
    """The rows in their transport form, one partition per piece.

    The URL begins with ``jdbc:mysql:`` for MariaDB and for its driver, too: with ``jdbc:mariadb:`` Spark quotes names
    by double quotes, which the server interprets as texts.
    """
    # The driver of MariaDB accepts this URL only with an option, from version 3 on.
    special = "permitMysqlScheme=true" if "mariadb" in driver else "useCursorFetch=true"
    properties = {
        "driver": driver,
        "user": database.user,
        "password": database.password,
        "fetchsize": str(ROWS_AT_A_TIME),
        "sessionVariables": "time_zone='+00:00'",
        # Without TLS, MySQL's default authentication needs the server's public key. PyMySQL requests it, too.
        "allowPublicKeyRetrieval": "true",
    }
    url = f"jdbc:mysql://{database.host}:{database.port}/{database.name}?{special}"
    # The condition of a piece is inside the query, where the column has its own type and its index.
    return reduce(
        lambda whole, piece: whole.unionAll(piece),
        (spark.read.jdbc(url, f"({selection.statement(each)}) AS carried", properties=properties) for each in pieces),
    )
