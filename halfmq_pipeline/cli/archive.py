"""`halfmq pipeline archive` and `halfmq pipeline compact`."""

from __future__ import annotations

from typing import Annotated

import typer

from halfmq_pipeline.archive import Archive, Compaction
from halfmq_pipeline.cli.options import (
    Conf,
    Endpoint,
    Folder,
    Master,
    RootCertificates,
    connection_options,
    running,
    say,
)

Topics = Annotated[list[str] | None, typer.Option("--topic", help="A topic; repeatable.")]


def archive(
    folder: Folder,
    endpoint: Endpoint = "localhost:8085",
    topic: Topics = None,
    topic_pattern: Annotated[str | None, typer.Option(help="A regular expression that names of topics match.")] = None,
    start: Annotated[
        str, typer.Option(help="Where to begin with what was never archived: earliest, latest, or a time (ISO 8601).")
    ] = "earliest",
    group: Annotated[
        str | None, typer.Option(help="A group to report progress to; with keep_unread nothing is lost to retention.")
    ] = None,
    messages_per_file: Annotated[int, typer.Option(min=1, help="The most that a file holds.")] = 250_000,
    follow: Annotated[
        float | None, typer.Option(min=0.1, help="Keep running: seconds between polls; otherwise once.")
    ] = None,
    allow_data_loss: Annotated[bool, typer.Option(help="Continue after messages were lost to retention.")] = False,
    tls_root_certificates: RootCertificates = None,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Add what is new in topics to an archive of Parquet files, each message once.

    The archive is its own checkpoint: run it again after any failure, and it continues with what is missing.
    """
    options = connection_options(endpoint, tls_root_certificates)
    options |= {"topicPattern": topic_pattern} if topic_pattern else {}
    options |= {"topics": ",".join(topic)} if topic else {}
    options["startingOffsets" if start in {"earliest", "latest"} else "startingTimestamp"] = start
    options |= {"group": group} if group else {}
    options["failOnDataLoss"] = str(not allow_data_loss)
    job = Archive(folder, options, messages_per_file, say=say)
    with running("archive", master, conf) as spark:
        if follow is not None:
            job.follow(spark, follow)
        done = job.run(spark)
    typer.echo(f"archived {done.messages} messages in {done.files} files, {done.size} bytes")


def compact(
    folder: Folder,
    topic: Topics = None,
    messages_per_file: Annotated[int, typer.Option(min=1, help="Files are merged up to so many.")] = 2_000_000,
    bytes_per_file: Annotated[int, typer.Option(min=1, help="And up to so many bytes.")] = 512 * 1024 * 1024,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Merge the small files of an archive; it can be archived to, read and killed at any time."""
    job = Compaction(folder, tuple(topic) if topic else None, messages_per_file, bytes_per_file, say)
    with running("compact", master, conf) as spark:
        done = job.run(spark)
    typer.echo(f"{done.before} files became {done.after}")
