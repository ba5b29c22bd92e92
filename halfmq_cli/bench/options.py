"""Options shared by several commands."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class CompressionName(StrEnum):
    """Settings of a topic, by name."""

    NONE = "none"
    ZSTD = "zstd"


DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        help="Server URL; databases of its own are made there. Default: embedded.", envvar="HALFMQ_BENCH_DATABASE"
    ),
]
Size = Annotated[int, typer.Option(min=8, max=4 * 1024 * 1024, help="Bytes of a body.")]
Compressed = Annotated[CompressionName, typer.Option(help="How the broker stores bodies.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
