"""`scripts/audit`: no pass where nothing was looked up."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CHECKOUT = Path(__file__).parents[2]
KNOWN = {"id": "PYSEC-2024-1", "aliases": ["CVE-2024-1"], "fix_versions": ["2.0"], "description": "bad"}
GOOD = {"name": "good", "version": "1.0", "vulns": []}
BAD = {"name": "bad", "version": "1.0", "vulns": [KNOWN]}
SKIPPED = {"name": "missing", "skip_reason": "Dependency not found on PyPI and could not be audited"}


@pytest.mark.parametrize(
    ("packages", "code", "told"),
    [
        ([GOOD, {**GOOD, "name": "other"}], 0, "nothing is known against 2 packages, says pypi"),
        ([GOOD, BAD], 1, "bad 1.0: PYSEC-2024-1, CVE-2024-1; fixed in 2.0"),
        ([BAD, SKIPPED], 1, "fixed in 2.0"),
        ([{**BAD, "vulns": [{**KNOWN, "fix_versions": []}]}], 1, "fixed in no version yet"),
        ([GOOD, SKIPPED], 3, "pypi: 1 packages could not be looked up"),
        ([SKIPPED, SKIPPED], 3, "pypi: 2 packages"),
        ([], 3, "pypi: all packages could not be looked up"),
        (None, 3, "pypi: all packages"),
    ],
)
def test_what_was_not_looked_up_is_no_pass(packages: Any, code: int, told: str, tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    if packages is not None:
        file.write_text(json.dumps({"dependencies": packages, "fixes": []}))
    command = [sys.executable, str(CHECKOUT / "scripts/lib/audited.py"), str(file), "pypi"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == code, done.stderr
    assert told in done.stdout + done.stderr


def test_an_option_that_there_is_not() -> None:
    done = subprocess.run(
        [CHECKOUT / "scripts/audit", "--all"], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 2
    assert "there is --sbom" in done.stderr
