"""Work that Spark spreads over its executors, a task for each item."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

__all__ = ["run_tasks"]

Item = TypeVar("Item")
Result = TypeVar("Result")


def run_tasks(spark: SparkSession, items: Sequence[Item], work: Callable[[Item], Result]) -> list[Result]:
    """Does work for every item, in whatever order; the results are in the order of the items.

    Spark tries a task again that failed, so the work must be such that it can be done twice.
    """
    if not items:
        return []
    return spark.sparkContext.parallelize(items, len(items)).map(work).collect()
