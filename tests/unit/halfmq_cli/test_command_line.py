"""The command `halfmq` itself: what it says of itself."""

from __future__ import annotations

import inspect
import re
from importlib.metadata import version
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from halfmq_cli import serve
from halfmq_cli.commands import app

WIDE = {"COLUMNS": "200", "TERM": "dumb"}


def said(*arguments: str) -> str:
    ran = CliRunner().invoke(app, arguments, env=WIDE)
    assert ran.exit_code == 0, ran.output
    return ran.output


def test_its_version_is_that_of_the_package() -> None:
    assert said("--version") == f"halfmq {version('halfmq')}\n"


@pytest.mark.parametrize("group", ["", "admin", "bench", "access", "pipeline", "bridge"])
def test_every_command_that_is_listed_can_be_run(group: str) -> None:
    found: Any = get_command(app)
    for name in (found.commands[group] if group else found).commands:
        assert "Usage" in said(*group.split(), name, "--help"), name


@pytest.mark.parametrize(
    "arguments", [("serve",), ("migrate",), ("doctor",), ("bench", "send"), ("demo",)], ids=" ".join
)
def test_help_is_shown_as_it_is_written(arguments: tuple[str, ...]) -> None:
    printed = said(*arguments, "--help")
    assert "\\[" not in printed
    if arguments == ("serve",):
        written = set(re.findall(r'help="[^"]*(\[[^"\]]+\])[^"]*"', inspect.getsource(serve)))
        assert {"[off]", "[broker]", "[text]", "[30]"} <= written
        assert [each for each in written if each not in printed] == []
