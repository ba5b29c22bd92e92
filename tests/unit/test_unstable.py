"""Tests that failed are run once more; who reads the outcome of a run can rely on it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.unstable import MOST_RUN_AGAIN, MOST_UNSTABLE

_TESTS = Path(__file__).parents[1]
# Fails the first time, and says so; passes when it finds the trace of that.
_UNSTABLE = """
def test_number_{number}(tmp_path_factory):
    from pathlib import Path
    trace = Path(__file__).with_name("trace-{number}")
    print("number {number}", "again" if trace.exists() else "first")
    before = trace.exists()
    trace.touch()
    assert before
"""
_BROKEN = "def test_broken():\n    assert False, 'broken for good'\n"
_GOOD = "def test_good():\n    pass\n"
_NO_FIXTURE = "def test_without_its_fixture(no_such_fixture):\n    pass\n"
_SKIPPED_AGAIN = """
def test_skipped_again():
    import pytest
    from pathlib import Path
    trace = Path(__file__).with_name("trace")
    if trace.exists():
        pytest.skip("no")
    trace.touch()
    assert False
"""


class Run:
    """pytest on a project of its own, in a process of its own, as scripts/test starts it: without naming a file."""

    def __init__(self, project: Path, *tests: str) -> None:
        self._project = project
        (project / "tests").mkdir()
        (project / "pytest.ini").write_text("[pytest]\ntestpaths = tests\n")
        (project / "tests" / "conftest.py").write_text("pytest_plugins = ('support.unstable',)\n")
        self.write(*tests)
        self.failures = project / ".noted" / "failures.json"

    def write(self, *tests: str) -> None:
        (self._project / "tests" / "test_some.py").write_text("".join(tests))

    def first(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self._pytest(f"--failures-to={self.failures}", *arguments)

    def again(self) -> subprocess.CompletedProcess[str]:
        return self._pytest(f"--once-more={self.failures}")

    def twice(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        first = self.first(*arguments)
        assert first.returncode == 1, first.stdout
        return self.again()

    def _pytest(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:randomly", *arguments],
            cwd=self._project,
            env={"PYTHONPATH": str(_TESTS), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one process", "workers"])
def test_what_failed_is_told_before_the_end(tmp_path: Path, workers: tuple[str, ...]) -> None:
    told = Run(tmp_path, _BROKEN, _GOOD).first(*workers).stdout
    line = "failed (call): tests/test_some.py::test_broken: AssertionError: broken for good"
    assert line in told[: told.index("= FAILURES =")].splitlines()


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one process", "workers"])
def test_what_passes_alone_is_unstable_and_both_outputs_are_shown(tmp_path: Path, workers: tuple[str, ...]) -> None:
    again = Run(tmp_path, _UNSTABLE.format(number=1), _GOOD).twice(*workers)
    assert again.returncode == 0, again.stdout
    unstable = again.stdout[again.stdout.index("= unstable:") :]
    assert "test_some.py::test_number_1" in unstable
    assert "number 1 first" in unstable
    assert "assert before" in unstable
    assert "number 1 again" in unstable
    assert "test_good" not in unstable
    assert "1 passed, 1 deselected" in again.stdout


def test_what_fails_again_has_failed(tmp_path: Path) -> None:
    again = Run(tmp_path, _BROKEN, _UNSTABLE.format(number=1)).twice()
    assert again.returncode == 1
    assert "broken for good" in again.stdout
    assert "1 failed, 1 passed" in again.stdout


def test_what_is_skipped_now_has_not_passed(tmp_path: Path) -> None:
    again = Run(tmp_path, _SKIPPED_AGAIN).twice()
    assert again.returncode == 1
    assert "= unstable:" not in again.stdout


def test_errors_of_fixtures_are_failures(tmp_path: Path) -> None:
    assert Run(tmp_path, _NO_FIXTURE).twice().returncode == 1


def test_a_file_that_can_no_longer_be_read_is_a_failure(tmp_path: Path) -> None:
    run = Run(tmp_path, _UNSTABLE.format(number=1))
    assert run.first().returncode == 1
    run.write(_GOOD)
    again = run.again()
    assert again.returncode == 1
    assert "not found again: tests/test_some.py::test_number_1" in again.stdout


@pytest.mark.parametrize(("count", "status"), [(MOST_UNSTABLE, 0), (MOST_UNSTABLE + 1, 1)])
def test_few_may_be_unstable(tmp_path: Path, count: int, status: int) -> None:
    again = Run(tmp_path, *[_UNSTABLE.format(number=number) for number in range(count)]).twice()
    assert again.returncode == status, again.stdout
    assert f"to be mended first of all: {count}" in again.stdout


def test_when_very_many_fail_none_is_run_again(tmp_path: Path) -> None:
    again = Run(tmp_path, *[_UNSTABLE.format(number=number) for number in range(MOST_RUN_AGAIN + 1)]).twice()
    assert again.returncode == 1
    assert "none is run again" in again.stdout


def test_nothing_failed_and_nothing_is_noted(tmp_path: Path) -> None:
    run = Run(tmp_path, _GOOD)
    run.failures.parent.mkdir()
    run.failures.write_text("of an earlier run")
    assert run.first().returncode == 0
    assert run.failures.read_text() == "{}"
