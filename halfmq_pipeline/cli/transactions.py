"""`halfmq pipeline transactions`."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from halfmq_pipeline.cli.options import Conf, Master, moment, running, say
from halfmq_pipeline.transactions import TransactionAnalytics


def transactions(
    database: Annotated[
        str,
        typer.Option(
            help="URL of the broker's database, as the broker has it.", metavar="URL", envvar="HALFMQ_DATABASE"
        ),
    ],
    output: Annotated[str, typer.Option(help="Folder for the report and the Parquet files.", metavar="PATH")],
    start: Annotated[
        str | None,
        typer.Option("--from", help="Verdicts from this time on (ISO 8601); otherwise a day before the end."),
    ] = None,
    end: Annotated[str | None, typer.Option("--to", help="Verdicts before this time; otherwise before now.")] = None,
    bucket: Annotated[
        float | None,
        typer.Option(help="Step of figures over time in seconds; otherwise such that there are 100 at most."),
    ] = None,
    stuck_after: Annotated[
        float, typer.Option(help="Seconds without a verdict after which a transaction is stuck.", min=0)
    ] = 600,
    as_of: Annotated[
        str | None, typer.Option(help="For a copy of the database: when it was made; otherwise now.")
    ] = None,
    reader: Annotated[str, typer.Option(help="How MySQL is read: auto, jdbc, connectorx or pymysql.")] = "auto",
    pieces: Annotated[int | None, typer.Option(help="Parts of the window that are read at once.", min=1)] = None,
    table_prefix: Annotated[
        str, typer.Option(help="What the names of the broker's tables begin with.", envvar="HALFMQ_TABLE_PREFIX")
    ] = "",
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Measure transactions: time to verdict, who decided, checks, what is stuck; as a report and Parquet files."""
    with running("transactions", master, conf) as spark:
        job = TransactionAnalytics(
            database,
            output,
            moment("--from", start),
            moment("--to", end),
            None if bucket is None else timedelta(seconds=bucket),
            timedelta(seconds=stuck_after),
            moment("--as-of", as_of),
            reader,
            pieces,
            table_prefix,
            say,
        )
        done = job.run(spark)
    for line in done.lines():
        typer.echo(line)
