"""Work distributed over Spark's executors, a task per item."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

__all__ = ["run_tasks"]

Item = TypeVar("Item")
Result = TypeVar("Result")


def run_tasks(spark: SparkSession, items: Sequence[Item], work: Callable[[Item], Result]) -> list[Result]:
    """Runs work for every item, in any order; the results are in the order of the items.

    Spark retries failed tasks, so the work must be idempotent.
    """
    if not items:
        return []
    return spark.sparkContext.parallelize(items, len(items)).map(work).collect()
