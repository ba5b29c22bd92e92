"""`halfmq pipeline replay`."""

from __future__ import annotations

from typing import Annotated

import typer

from halfmq_pipeline.cli.options import (
    Conf,
    Endpoint,
    Folder,
    Master,
    RootCertificates,
    connection_options,
    moment,
    running,
    say,
)
from halfmq_pipeline.replay import Replay


def replay(
    folder: Folder,
    topic: Annotated[str, typer.Option(help="The topic that was archived.")],
    into: Annotated[str, typer.Option(help="The topic to write to.")],
    name: Annotated[str, typer.Option(help="Name of this replay; the same name resumes it.")],
    endpoint: Endpoint = "localhost:8085",
    since: Annotated[
        str | None, typer.Option(help="Messages that became visible at this time (ISO 8601) or later.")
    ] = None,
    until: Annotated[str | None, typer.Option(help="Messages that became visible before this time.")] = None,
    messages_per_part: Annotated[int, typer.Option(min=1, help="Messages that are released at once.")] = 100_000,
    origin_property: Annotated[
        str | None, typer.Option(help="Property for a message's origin: topic/queue/offset.")
    ] = None,
    tls_root_certificates: RootCertificates = None,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Write archived messages to a topic again, each once, however often it is run under the same name."""
    with running("replay", master, conf) as spark:
        job = Replay(
            folder,
            topic,
            into,
            name,
            connection_options(endpoint, tls_root_certificates),
            moment("since", since),
            moment("until", until),
            messages_per_part,
            origin_property,
            say,
        )
        done = job.run(spark)
    typer.echo(f"replayed {done.messages} messages in {done.parts} parts")
