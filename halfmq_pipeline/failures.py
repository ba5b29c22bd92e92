"""Conversion of Spark's task errors to a job's error."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from consumer_sdk.errors import HalfmqError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["first_line", "told_in_one_line"]

_CAUSE = "Caused by: "
_PYTHON_ERROR = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)(?:: |$)")
_TRACE = "Traceback (most recent call last)"
_OURS = "_sdk.errors."
# By raise_error in a job's own expressions.
_RAISED = "[USER_RAISED_EXCEPTION] "
# From py4j, which is Spark's dependency: errors without a class in PySpark.
_OF_JAVA = "Py4JJavaError"


@contextmanager
def told_in_one_line() -> Iterator[None]:
    """Converts Spark's errors to errors of halfmq, without plans and traces.

    Raises:
        HalfmqError: A task failed permanently, or Spark refused.
    """
    try:
        yield
    except Exception as error:
        if not isinstance(error, PySparkException) and type(error).__name__ != _OF_JAVA:
            raise
        raise HalfmqError(first_line(error)) from error


def first_line(error: Exception) -> str:
    """The cause of an error of Spark: halfmq's own error text, if there is one.

    Otherwise its first line, which is often generic, and the underlying cause.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = [line.partition(_OURS)[2].partition(": ")[2] for line in lines if _OURS in line]
    ours += [line.partition(_RAISED)[2] for line in lines if _RAISED in line]
    if ours:
        return ours[0]
    head = lines[0] if lines else repr(error)
    causes = [line.removeprefix(_CAUSE) for line in lines if line.startswith(_CAUSE)]
    # In a Python traceback the line after the frames has the error.
    causes += [line for line in lines[1:] if _PYTHON_ERROR.match(line) and _TRACE not in line]
    behind = next((cause for cause in reversed(causes) if cause not in head), "")
    return f"{head} ({behind})" if behind else head
