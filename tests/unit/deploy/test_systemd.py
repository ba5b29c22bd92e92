"""deploy/systemd: the unit is valid, is kept out of the machine, and waits long enough for a drain."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from support.databases import in_ci
from support.deployment import AFTERWARDS, DEPLOY, settings

if TYPE_CHECKING:
    from pathlib import Path

UNIT = DEPLOY / "systemd" / "halfmq.service"
MOST_EXPOSED = 2.0
"""Of systemd's scale, which ends at 10; a service without any protection has 9.6."""


@pytest.fixture(scope="module")
def service() -> dict[str, str]:
    parser = configparser.RawConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(re.sub("^SystemCallFilter=~.*\n", "", UNIT.read_text(), flags=re.MULTILINE))
    return dict(parser["Service"])


@pytest.fixture(scope="module")
def systemd_analyze() -> str:
    command = shutil.which("systemd-analyze")
    if command is None:
        message = "systemd-analyze is missing: apt-get install systemd"
        if in_ci():
            pytest.fail(message)
        pytest.skip(message)
    return command


def test_systemd_finds_nothing_wrong(systemd_analyze: str, tmp_path: Path) -> None:
    # Of a command that is installed elsewhere than on this machine it says that it is missing.
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/halfmq/bin/halfmq", shutil.which("true") or ""))
    done = subprocess.run([systemd_analyze, "verify", unit], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_broker_is_kept_out_of_the_machine(systemd_analyze: str) -> None:
    command = [systemd_analyze, "security", "--offline=true", "--no-pager", UNIT]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    found = re.search(r"Overall exposure level for halfmq.service: ([0-9.]+)", done.stdout)
    assert found is not None, done.stdout + done.stderr
    assert float(found[1]) < MOST_EXPOSED, done.stdout


def test_what_it_starts_is_known_to_the_command(service: dict[str, str], tmp_path: Path) -> None:
    database = tmp_path / "database"
    database.write_text("mysql://halfmq:secret@db/halfmq\n")
    started = service["ExecStart"].replace("${CREDENTIALS_DIRECTORY}", str(tmp_path)).split()[1:]
    config = settings(started, {})
    assert config.database.startswith("mysql://halfmq:secret@db")
    assert config.listen.endswith(":8085")
    assert int(service["TimeoutStopSec"]) > config.drain + AFTERWARDS


def test_it_has_started_when_it_serves_however_long_a_migration_takes(service: dict[str, str]) -> None:
    assert (service["Type"], service["NotifyAccess"]) == ("notify", "main")
    assert service["TimeoutStartSec"] == "infinity"


def test_the_password_is_neither_an_argument_nor_a_variable(service: dict[str, str]) -> None:
    assert service["LoadCredential"].startswith("database:")
    assert "Environment" not in service
    assert "--database " not in service["ExecStart"]


def test_it_comes_back_however_often_it_ends(service: dict[str, str]) -> None:
    assert service["Restart"] == "always"
    assert "StartLimitIntervalSec=0" in UNIT.read_text()
