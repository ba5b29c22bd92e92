"""What is said of an error of Spark's: halfmq's own words, or its first line and what is behind it."""

from __future__ import annotations

import pytest

from halfmq_pipeline.failures import first_line

STREAM = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Job aborted due to stage failure:
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 1, in main
    process()
{error}

\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:1)
{cause}
"""
HEAD = "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Job aborted due to stage failure:"


@pytest.mark.parametrize(
    ("error", "cause", "told"),
    [
        (
            "consumer_sdk.errors.BrokerUnavailable: nobody answers",
            "Caused by: java.io.IOException: x",
            "nobody answers",
        ),
        ("ValueError: no such column", "", f"{HEAD} (ValueError: no such column)"),
        ("KeyboardInterrupt", "", f"{HEAD} (KeyboardInterrupt)"),
        ("nothing", "Caused by: java.io.IOException: No space left", f"{HEAD} (java.io.IOException: No space left)"),
        ("nothing", "", HEAD),
    ],
)
def test_an_error_is_told_with_what_is_behind_it(error: str, cause: str, told: str) -> None:
    assert first_line(RuntimeError(STREAM.format(error=error, cause=cause))) == told


def test_an_error_of_one_line_is_told_as_it_is() -> None:
    assert first_line(RuntimeError("[PATH_NOT_FOUND] Path does not exist: /nowhere.")) == (
        "[PATH_NOT_FOUND] Path does not exist: /nowhere."
    )
    assert first_line(RuntimeError()) == "RuntimeError()"
