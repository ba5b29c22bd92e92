"""`halfmq pipeline reconcile`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from consumer_sdk.errors import ConfigurationError
from consumer_sdk.spark.bounds import time_of
from halfmq_pipeline.cli.options import (
    Conf,
    Endpoint,
    Master,
    RootCertificates,
    connection_options,
    moment,
    running,
    say,
)
from halfmq_pipeline.reconcile import Reconcile, Repair

FINDINGS = 3
"""Exit status when there are findings; 2 is for a wrong option."""


def reconcile(
    database: Annotated[
        str,
        typer.Option(
            help="mysql://user:password@host:port/database, or sqlite:///file. Better in the environment: others see"
            " the arguments of a command.",
            envvar="HALFMQ_BUSINESS_DATABASE",
            metavar="URL",
        ),
    ],
    table: Annotated[str, typer.Option(help="The table with the rows, or a SELECT.")],
    topic: Annotated[str, typer.Option(help="The topic with the messages.")],
    output: Annotated[str, typer.Option(help="Folder for the findings and the report.", metavar="PATH")],
    start: Annotated[str, typer.Option("--from", help="Where the window begins (ISO 8601, with a time zone).")],
    end: Annotated[str | None, typer.Option("--to", help="Where it ends; otherwise now, less the grace.")] = None,
    key: Annotated[str, typer.Option(help="Column or SQL expression that gives a message's key.")] = "id",
    time: Annotated[
        str, typer.Option(help="Column or SQL expression that tells when a row was written.")
    ] = "created_at",
    time_unit: Annotated[str | None, typer.Option(help="Of a time that is a number from 1970 on: s, ms or us.")] = None,
    grace: Annotated[float, typer.Option(min=0, help="Seconds that a row and its message are apart, at most.")] = 300.0,
    compare: Annotated[
        list[str] | None,
        typer.Option(
            help="A column to compare, as NAME (with the field of this name in a JSON body) or NAME=EXPRESSION (Spark"
            " SQL over the message); repeatable.",
            metavar="NAME[=EXPRESSION]",
        ),
    ] = None,
    rows: Annotated[str | None, typer.Option(help="Only these rows: a condition in the database's SQL.")] = None,
    messages: Annotated[str | None, typer.Option(help="Only these messages: a condition in Spark SQL.")] = None,
    message_key: Annotated[str, typer.Option(help="Spark SQL over the message that gives the row's key.")] = "key",
    message_time: Annotated[str, typer.Option(help="Spark SQL that gives the time a message is about.")] = "born_at",
    unique: Annotated[bool, typer.Option(help="Whether a second message of a key is a finding.")] = True,
    repair: Annotated[bool, typer.Option("--repair", help="Send the messages that are missing.")] = False,
    repair_body: Annotated[
        str | None, typer.Option(help="Their content: Spark SQL over the row; otherwise all columns as JSON.")
    ] = None,
    repair_tag: Annotated[str | None, typer.Option(help="Their tag: Spark SQL over the row.")] = None,
    repair_property: Annotated[
        list[str] | None, typer.Option(help="A property of theirs; repeatable.", metavar="NAME=EXPRESSION")
    ] = None,
    reader: Annotated[str, typer.Option(help="What reads the table: auto, jdbc, connectorx or pymysql.")] = "auto",
    split_by: Annotated[
        str | None, typer.Option(help="Integer column whose ranges are read at once; otherwise the primary key.")
    ] = None,
    pieces: Annotated[int | None, typer.Option(min=1, help="Number of these ranges.")] = None,
    endpoint: Endpoint = "localhost:8085",
    tls_root_certificates: RootCertificates = None,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Compare a table with the messages about it: missing, differing and duplicate ones.

    Ends with status 0 without findings, 3 with findings, and 1 when the comparison failed.
    """
    with running("reconcile", master, conf) as spark:
        missing = Repair(
            repair_body, repair_tag, dict(_pair("repair-property", each) for each in repair_property or ())
        )
        job = Reconcile(
            connection_options(endpoint, tls_root_certificates),
            database,
            table,
            key,
            time,
            topic,
            time_of("from", start),
            moment("to", end) or datetime.now(UTC),
            output,
            time_unit,
            timedelta(seconds=grace),
            dict(map(_comparison, compare or ())),
            rows,
            messages,
            message_key,
            message_time,
            unique,
            split_by,
            pieces,
            reader,
            missing if repair else None,
            say=say,
        )
        done = job.run(spark)
    typer.echo(f"judged {done.rows} rows and {done.messages} messages")
    for kind, count in done.found.items():
        typer.echo(f"{kind} {count}")
    if repair:
        typer.echo(f"repaired {done.repaired}")
    if done.wrong:
        raise typer.Exit(FINDINGS)


def _comparison(text: str) -> tuple[str, tuple[str, str]]:
    name, equals, message = (part.strip() for part in text.partition("="))
    if not name.isidentifier() or (equals and not message):
        msg = f"--compare {text!r} is neither NAME nor NAME=EXPRESSION; NAME is a column of the table"
        raise ConfigurationError(msg, field="compare")
    return name, (f"`{name}`", message or f"get_json_object(body, '$.{name}')")


def _pair(option: str, text: str) -> tuple[str, str]:
    name, equals, expression = (part.strip() for part in text.partition("="))
    if not (name and equals and expression):
        msg = f"--{option} {text!r} is not NAME=EXPRESSION"
        raise ConfigurationError(msg, field=option)
    return name, expression
