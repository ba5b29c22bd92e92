"""`halfmq pipeline aggregate`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from halfmq_pipeline.aggregate import Aggregate
from halfmq_pipeline.cli.options import (
    Conf,
    Endpoint,
    Master,
    RootCertificates,
    connection_options,
    running,
    say,
)


class Mode(StrEnum):
    """When windows are written."""

    APPEND = "append"
    UPDATE = "update"


def aggregate(
    topic: Annotated[str, typer.Option(help="The topic to read; its messages hold JSON objects.")],
    into: Annotated[str, typer.Option(help="The topic to write to.")],
    name: Annotated[str, typer.Option(help="Name of the sink: unique, the same in every run.")],
    checkpoint: Annotated[str, typer.Option(help="Folder for Spark's progress.", metavar="PATH")],
    columns: Annotated[str, typer.Option(help="Fields of the messages: 'carrier string, delay double, at timestamp'.")],
    time: Annotated[str, typer.Option(help="Expression of the event's time, such as a field.")],
    figure: Annotated[list[str], typer.Option(help="An aggregate: 'count(*) AS flights'; repeatable.")],
    window: Annotated[str, typer.Option(help="Length of a window.")] = "1 hour",
    endpoint: Endpoint = "localhost:8085",
    slide: Annotated[str | None, typer.Option(help="Distance of two windows, where they overlap.")] = None,
    watermark: Annotated[str, typer.Option(help="How late an event may come.")] = "10 minutes",
    group_by: Annotated[list[str] | None, typer.Option(help="A field or an expression; repeatable.")] = None,
    mode: Annotated[
        Mode, typer.Option(help="append: a window once, when it is complete; update: whenever it changed.")
    ] = Mode.APPEND,
    group: Annotated[str | None, typer.Option(help="A consumer group to report progress to.")] = None,
    messages_per_batch: Annotated[int, typer.Option(min=1, help="Messages of a micro-batch.")] = 50_000,
    skip_malformed: Annotated[bool, typer.Option(help="Skip messages that cannot be read.")] = False,
    follow: Annotated[
        float | None, typer.Option(min=0.1, help="Keep running: seconds between micro-batches; otherwise once.")
    ] = None,
    tls_root_certificates: RootCertificates = None,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Aggregate a topic over time windows, and write each figure exactly once to another topic."""
    job = Aggregate(
        options=connection_options(endpoint, tls_root_certificates),
        topic=topic,
        into=into,
        name=name,
        checkpoint=checkpoint,
        columns=columns,
        time=time,
        window=window,
        figures=tuple(figure),
        slide=slide,
        watermark=watermark,
        group_by=tuple(group_by or ()),
        mode="append" if mode is Mode.APPEND else "update",
        group=group,
        skip_malformed=skip_malformed,
        max_offsets_per_trigger=messages_per_batch,
        say=say,
    )
    with running("aggregate", master, conf) as spark:
        done = job.run(spark, follow)
    typer.echo(f"took in {done.messages} messages in {done.batches} micro-batches")
    if done.late:
        typer.echo("some events came too late and are not counted; a longer --watermark lets them in")
