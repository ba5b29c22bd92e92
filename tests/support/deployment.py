"""What the files for Docker, systemd and Kubernetes say, for tests that hold them against the command."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer.main import get_command

from broker.config_sources import load_config
from halfmq_cli.commands import app

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from broker.config import BrokerConfig

CHECKOUT = Path(__file__).parents[2]
DEPLOY = CHECKOUT / "deploy"
AFTERWARDS = 7.0
"""Seconds that a broker may take after its drain: it closes connections, and a backstop ends it."""


def parsed(arguments: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """A command of `halfmq` and its options; one that the command does not know fails the test."""
    command: Any = get_command(app)
    name, *options = arguments
    return name, command.commands[name].make_context(name, options).params


def settings(arguments: Sequence[str], variables: Mapping[str, str]) -> BrokerConfig:
    """The settings of `halfmq serve` with these arguments and variables; each variable has to be a setting."""
    name, given = parsed(arguments)
    assert name == "serve"
    for variable in variables:
        assert variable.removeprefix("HALFMQ_").lower() in given, f"{variable} is no setting"
    file = given.pop("config_file")
    return load_config(given, environment=variables, file=file and DEPLOY / "systemd" / Path(file).name)


def dockerfile() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile, and what they say, with continued lines joined."""
    text = re.sub(r"^#.*\n", "", (CHECKOUT / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in lines if line]


def image_variables() -> dict[str, str]:
    """The HALFMQ_ variables of the image."""
    words = [word for instruction, text in dockerfile() if instruction == "ENV" for word in shlex.split(text)]
    return {name: value for name, value in (word.split("=", 1) for word in words) if name.startswith("HALFMQ_")}


def copied() -> list[str]:
    """What the Dockerfile copies from the checkout."""
    texts = [text.split() for instruction, text in dockerfile() if instruction == "COPY"]
    return [source for words in texts if not words[0].startswith("--from") for source in words[:-1]]


def port(address: str) -> int:
    """The port of an address."""
    return int(address.rpartition(":")[2])
