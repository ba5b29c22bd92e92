"""The command `halfmq`."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Runs the command line."""
    # The program reports failures itself; gRPC would add log lines of its own.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        from halfmq_cli.commands import app  # noqa: PLC0415 - the bare installation has no command line
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] in {"broker", "halfmq"}:
            raise
        sys.exit(
            f"halfmq: the command needs the broker's packages ({error.name} is missing): pip install 'halfmq[broker]'"
        )
    for number, argument in enumerate(sys.argv[1:], 1):
        try:
            argument.encode()
        except UnicodeEncodeError:
            sys.exit(f"halfmq: argument {number} is not UTF-8")
    app()
