"""What the wheel has: packages that say that they are typed, so that users' programs are checked against them."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
HATCH = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["tool"]["hatch"]
PACKAGES = HATCH["build"]["targets"]["wheel"]["packages"]


@pytest.mark.parametrize("package", [each for each in PACKAGES if not each.startswith("proto/")])
def test_each_package_is_typed(package: str) -> None:
    assert (CHECKOUT / package / "py.typed").exists()


def test_users_programs_are_checked_against_the_sdks(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "from producer_sdk import HalfmqError, Message\n"
        "class Mine(HalfmqError): ...\n"
        "reveal_type(Message('a', 'b').topic)\n"
        "Message('a', 5)\n"
    )
    command = [sys.executable, "-m", "mypy", "--strict", "--no-incremental", "--follow-imports=silent", str(program)]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert 'Revealed type is "str"' in result.stdout.replace("builtins.str", "str"), result.stdout
    assert 'Argument 2 to "Message" has incompatible type' in result.stdout
    assert "Found 1 error" in result.stdout
