"""The example of an order service runs as it says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.patience import HANG

EXAMPLE = Path(__file__).parents[2] / "examples" / "order_service.py"


def test_the_order_service_shows_a_commit_a_rollback_and_a_check() -> None:
    done = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, timeout=HANG, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:3] == [
        "lamp: committed here and at the broker",
        "yacht: rolled back here and at the broker (a yacht is too much)",
        "chair: committed here, the broker does not know",
    ]
    assert sorted(lines[3:]) == ["received: chair", "received: lamp"]
