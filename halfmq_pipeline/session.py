"""The Spark session that a job runs in."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from consumer_sdk.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["open_session"]

_PYTHON = {"PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"}
# Spark's default of 200 is for clusters.
_HERE = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
}


def open_session(name: str, master: str | None = None, settings: Iterable[str] = ()) -> SparkSession:
    """Returns the session of spark-submit, or creates a local one.

    Args:
        name: Name of the application in Spark.
        master: Where Spark runs; None: as spark-submit says, otherwise on all cores of this machine.
        settings: Settings of Spark, each as ``name=value``.

    Raises:
        ConfigurationError: A setting has no value.
    """
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    builder = SparkSession.builder.appName(name)
    if master is None and not submitted:
        master = "local[*]"
    if not submitted and (master or "").startswith("local") and not _PYTHON & os.environ.keys():
        # Spark discovers the format in the environment of `python3`, which may differ from this one.
        os.environ["PYSPARK_PYTHON"] = sys.executable
    if master is not None:
        builder = builder.master(master)
    for key, value in ({} if submitted else _HERE).items():
        builder = builder.config(key, value)
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            msg = f"--conf {setting!r} has no value; write it as name=value"
            raise ConfigurationError(msg, field="conf")
        builder = builder.config(key.strip(), value.strip())
    session = builder.getOrCreate()
    # Times of messages are read and written in it.
    session.conf.set("spark.sql.session.timeZone", "UTC")
    if not submitted:
        # A job reports its error in one line; spark-submit has its own settings for Spark's log.
        session.sparkContext.setLogLevel("OFF")
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
    return session
