"""What Spark's Python workers import with the functions of the jobs: each new worker does."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["reconcile.output", "reconcile.repair", "tables.reading"])
def test_workers_do_not_wait_for_the_library_of_plots(module: str) -> None:
    command = f"import sys, halfmq_pipeline.{module}; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
