"""What a decision record measures can be measured again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.databases import Kind, create_database, drop_database, server_url
from support.patience import HANG

DECISIONS = Path(__file__).parents[2] / "docs" / "decisions"


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
@pytest.mark.parametrize("script", sorted(DECISIONS.glob("*.py")), ids=lambda path: path.stem)
def test_its_script_runs(kind: Kind, script: Path) -> None:
    url = create_database(server_url(kind))
    ran = subprocess.run([sys.executable, script, url, "1"], capture_output=True, text=True, check=False, timeout=HANG)
    drop_database(url)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.count(" ms processor") == 4
