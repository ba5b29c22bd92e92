"""Options shared by several commands."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer
from pyspark.sql import SparkSession

from consumer_sdk.errors import HalfmqError
from consumer_sdk.spark.bounds import time_of
from halfmq_pipeline.failures import told_in_one_line
from halfmq_pipeline.session import open_session

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

__all__ = ["Conf", "Endpoint", "Folder", "Master", "RootCertificates", "connection_options", "moment", "running", "say"]

Endpoint: TypeAlias = Annotated[
    str, typer.Option(help="A broker, host:port, or several with commas between them.", envvar="HALFMQ_ENDPOINT")
]
RootCertificates: TypeAlias = Annotated[
    str | None,
    typer.Option(help="PEM file of the authorities to trust; encrypts the connection.", metavar="FILE"),
]
Master: TypeAlias = Annotated[
    str | None, typer.Option(help="Where Spark runs; otherwise as spark-submit says, or on this machine.")
]
Folder: TypeAlias = Annotated[
    str, typer.Option(help="Folder of the archive: a path, or a URI such as s3://bucket/archive.", metavar="PATH")
]
Conf: TypeAlias = Annotated[list[str] | None, typer.Option(help="A setting of Spark, as name=value; repeatable.")]


def connection_options(endpoint: str, root_certificates: str | None) -> dict[str, str]:
    """The data source's connection options."""
    options = {"endpoint": endpoint}
    if root_certificates:
        options["tlsRootCertificates"] = root_certificates
    return options


def moment(option: str, text: str | None) -> datetime | None:
    """An optional time.

    Raises:
        ConfigurationError: It is malformed, or has no time zone.
    """
    return None if text is None else time_of(option, text)


def say(line: str) -> None:
    """Prints a job's progress on standard error, so that results can be piped."""
    typer.echo(line, err=True)


@contextmanager
def running(name: str, master: str | None, settings: list[str] | None) -> Iterator[SparkSession]:
    """A Spark session for a command; errors of halfmq end it with one line and status 1.

    An existing session is kept.
    """
    try:
        before = SparkSession.getActiveSession()
        spark = open_session(f"halfmq {name}", master, settings or ())
        try:
            with told_in_one_line():
                yield spark
        finally:
            if before is None:
                spark.stop()
    except HalfmqError as error:
        typer.echo(f"halfmq pipeline {name}: {error}", err=True)
        raise typer.Exit(1) from error
