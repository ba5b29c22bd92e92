"""Relays, cdc and bridges in processes as operators start them: their logs, and their metrics."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from support.patience import HANG

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def logged(*arguments: str, environment: dict[str, str] | None = None) -> Iterator[Iterator[str]]:
    """A command; the lines of its standard error, as they come."""
    process = subprocess.Popen(
        [sys.executable, "-m", "halfmq_cli", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
    )
    assert process.stderr is not None
    try:
        yield (line.rstrip("\n") for line in process.stderr)
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=HANG)


@contextmanager
def measured(*arguments: str, environment: dict[str, str] | None = None) -> Iterator[str]:
    """A command with metrics; their address."""
    with logged(*arguments, "--metrics-listen=127.0.0.1:0", environment=environment) as lines:
        seen = []
        for line in lines:
            seen.append(line)
            if found := re.fullmatch(r"metrics on (\S+)", line):
                yield found[1]
                break
        else:
            pytest.fail("\n".join(seen))


def nobody_listens() -> str:
    """An address where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def subscription(endpoint: str, host: str) -> str:
    """A file of cdc, for a database at this address; its password is in CDC_PASSWORD."""
    return (
        f'name = "shop"\n[broker]\nendpoint = "{endpoint}"\n[database]\nhosts = ["{host}"]\n'
        'user = "cdc"\npassword_env = "CDC_PASSWORD"\nserver_id = 4711\n[[table]]\nmatch = "shop.*"\ntopic = "orders"\n'
    )
