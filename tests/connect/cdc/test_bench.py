"""The benchmark runs and prints the figures that its page names; how large they are is not asserted."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from halfmq_cli.bench.scenarios import cdc
from support.patience import HANG

if TYPE_CHECKING:
    from connect.cdc.sources import Source

CHECKOUT = Path(__file__).parents[3]


def test_it_prints_what_the_page_names(source: Source) -> None:
    command = [sys.executable, "-m", "halfmq_cli", "bench", "cdc", "--source", f"mysql://halfmq:halfmq@{source.host}/"]
    command += ["--rows", "1000", "--seconds", "1", "--rate", "200", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANG, cwd=CHECKOUT)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    page = (CHECKOUT / "docs" / "benchmarks.md").read_text().partition("## `halfmq bench cdc`")[2].partition("\n## ")[0]
    named = {name for row in re.findall(r"^\| (`[^|]+) \|", page, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
    assert named == figures.keys()
    assert source.ask("SHOW DATABASES LIKE 'halfmq_bench%'") == []


def test_the_library_to_compare_with_is_no_part_of_the_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pymysqlreplication", None)
    with pytest.raises(SystemExit):
        cdc.cdc("mysql://127.0.0.1:1/")
    assert "pip install mysql-replication" in capsys.readouterr().err
    extras = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert not any("mysql-replication" in each for listed in extras.values() for each in listed)
