"""Spark's daemon of Python workers, which imports what all of them need before it forks them.

Each would take a second of processor time for it, and a test of Spark starts several. The drivers that tests start as
commands have Spark's own daemon.
"""

from __future__ import annotations

import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import consumer_sdk.spark.data_source  # noqa: F401

if __name__ == "__main__":
    manager()
