"""docs/ways/README.md: its tests pass, in a process of their own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from support.patience import HANG

PAGE = Path(__file__).parents[3] / "docs" / "ways" / "README.md"


def test_the_tests_on_the_page_pass(tmp_path: Path) -> None:
    (listing,) = re.findall(r"^```python\n(.*?)^```\n", PAGE.read_text(encoding="utf-8"), re.S | re.M)
    (tmp_path / "test_orders.py").write_text(listing, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_orders.py"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=HANG, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "4 passed" in ran.stdout
