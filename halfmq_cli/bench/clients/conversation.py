"""Protocol between a client process and the benchmark: a line of JSON in, a line of JSON out."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

QUIET = 60.0
"""Seconds without a message after which the missing ones count as lost; longer than any retry of the SDKs."""


def missing(count: int) -> TimeoutError:
    """The error for messages that do not come."""
    return TimeoutError(f"nothing has come for {QUIET:g} s; {count} messages are missing")


async def next_request() -> Any:
    """The next request on standard input; None at the end."""
    line = await asyncio.to_thread(sys.stdin.readline)
    return json.loads(line) if line else None


def answer(content: Any) -> None:
    """Answers on the standard output."""
    sys.stdout.write(json.dumps(content) + "\n")
    sys.stdout.flush()
