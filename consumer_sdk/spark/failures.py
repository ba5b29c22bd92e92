"""Presentation of errors in Spark."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from consumer_sdk.errors import HalfmqError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["shown_in_one_line"]


@contextmanager
def shown_in_one_line() -> Iterator[None]:
    """Has Spark show an error of halfmq without the Python traceback, which would hide the message.

    A worker ends after an error, so this setting does not outlive it.
    """
    try:
        yield
    except HalfmqError:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise
