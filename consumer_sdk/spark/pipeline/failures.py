"""How errors of Spark's tasks end the job."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from consumer_sdk.errors import HalfmqError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["first_line", "told_in_one_line"]

_OURS = "_sdk.errors."
# By raise_error in a job's own expressions.
_RAISED = "[USER_RAISED_EXCEPTION] "
# Of py4j, which is Spark's dependency and not ours: what no class of PySpark stands for.
_OF_JAVA = "Py4JJavaError"


@contextmanager
def told_in_one_line() -> Iterator[None]:
    """Makes an error of halfmq's of Spark's, without the plan and the traces behind it.

    Raises:
        HalfmqError: A task failed for good, or Spark refused.
    """
    try:
        yield
    except Exception as error:
        if not isinstance(error, PySparkException) and type(error).__name__ != _OF_JAVA:
            raise
        raise HalfmqError(first_line(error)) from error


def first_line(error: Exception) -> str:
    """What an error of Spark's says of the cause: halfmq's own words where it has some."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = [line.partition(_OURS)[2].partition(": ")[2] for line in lines if _OURS in line]
    ours += [line.partition(_RAISED)[2] for line in lines if _RAISED in line]
    causes = [line for line in lines if line.startswith("Caused by: ")]
    return [*ours, *causes[-1:], *lines, repr(error)][0]
