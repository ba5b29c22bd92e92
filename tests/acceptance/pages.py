"""Pages whose commands run: blocks of bash, each with a block behind it that shows what it prints."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from support.databases import in_ci
from support.patience import HANG

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# A block of commands, and the block behind it that shows what they print; exit=N where that is not 0.
_BLOCK = re.compile(
    r"^```bash\n(?P<command>.*?)^```\n(?:\n```(?:json|text)(?: exit=(?P<exit>\d+))?\n(?P<shown>.*?)^```\n)?",
    re.S | re.M,
)
_VOLATILE = (
    (re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "<id>"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"), "<time>"),
    (re.compile(r'("receipt_handle": )"[0-9a-f.]+"'), r'\1"<handle>"'),
    (re.compile(r'("broker_id": )"[^"]+"'), r'\1"<broker>"'),
    (re.compile(r'("lag_time": )"[^"]+"'), r'\1"<time>"'),
    (re.compile(r'("topic_id": )"\d+-\d+"'), r'\1"<topic>"'),
    (re.compile(r'("(?:host|endpoint|version|schema_version|address|library)": )"[^"]+"'), r'\1"<of the machine>"'),
    (re.compile(r'("pid": )\d+'), r"\1 0"),
    (re.compile(r'("clock_difference": )"[^"]+"'), r'\1"<time>"'),
    # A lock that was not free in time, on a busy machine; it was tried again.
    (re.compile(r'"database_errors": \[\s*\{\s*"name": "retry",\s*"count": "\d+"\s*\}\s*\],\s*'), ""),
)


@dataclass(frozen=True, slots=True)
class Block:
    """A block of commands.

    Attributes:
        line: where it begins in its page, from 1.
        command: what it runs.
        shown: what the page says that it prints.
        exit: the exit status that the page tells.
    """

    line: int
    command: str
    shown: str
    exit: int


def blocks_of(page: Path) -> list[Block]:
    """The blocks of a page, in their order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(text.count("\n", 0, found.start()) + 1, found["command"], found["shown"] or "", int(found["exit"] or 0))
        for found in _BLOCK.finditer(text)
    ]


def facts(text: str) -> list[Any]:
    """What a text says, without what changes from run to run: JSON values where it is JSON, else its lines."""
    for pattern, stand_in in _VOLATILE:
        text = pattern.sub(stand_in, text)
    if not text.lstrip().startswith("{"):
        return [line.rstrip() for line in text.splitlines() if line.strip()]
    values, rest = [], text.lstrip()
    while rest:
        value, end = json.JSONDecoder().raw_decode(rest)
        values.append(value)
        rest = rest[end:].lstrip()
    return values


def need_grpcurl() -> None:
    """Skips the test where there is no grpcurl; in CI it fails."""
    if shutil.which("grpcurl") is not None:
        return
    reason = "needs grpcurl: scripts/test installs it, or go install github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.8.9"
    if in_ci():
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def unused_port() -> int:
    """A port on which nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def run_blocks(blocks: Sequence[Block], folder: Path, **variables: str) -> list[tuple[int, str]]:
    """Exit status and output of every block, run in one shell, in order, with these variables."""
    script = "".join(
        f"{{\n{block.command}\n}} >{number}.out 2>&1\necho $? >{number}.exit\n" for number, block in enumerate(blocks)
    )
    subprocess.run(
        ["bash", "-o", "pipefail", "-c", script],
        env={**os.environ, **variables},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        check=True,
        timeout=HANG,
    )
    return [
        (int((folder / f"{number}.exit").read_text()), (folder / f"{number}.out").read_text())
        for number in range(len(blocks))
    ]
