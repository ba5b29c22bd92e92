"""Tests that failed are run once more, alone: what fails again has failed, what passes is unstable.

`pytest --failures-to=FILE` notes which tests failed, and what they said. `pytest --once-more=FILE` (for each of several
files) runs only these, and shows those that pass now under a heading of their own, with both outputs. They
are to be mended: each of them is a test, or a part of the product, that depends on how busy the machine is. More than a
few of them are a failure. (With a blank instead of =, pytest takes a file that exists for tests, and does not know the
option.)
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_UNSTABLE = 5
MOST_RUN_AGAIN = 40
"""When more failed, the machine is not to blame: none is run again."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the two options."""
    group = parser.getgroup("unstable tests")
    group.addoption("--failures-to", metavar="FILE", help="note in a file which tests failed")
    group.addoption("--once-more", metavar="FILE", action="append", help="run only the tests that such files name")


def pytest_configure(config: pytest.Config) -> None:
    """Installs what the options ask for; workers of pytest-xdist report to their controller."""
    if hasattr(config, "workerinput"):
        return
    if wanted := config.getoption("failures_to"):
        config.pluginmanager.register(Failures(config, Path(wanted)))
    if wanted := config.getoption("once_more"):
        before: dict[str, str] = {}
        for file in wanted:
            before |= json.loads(Path(file).read_text())
        config.pluginmanager.register(OnceMore(before))


class Failures:
    """Notes the tests that failed, in any of their phases, by their ids; says so at once, as a run may be cut off."""

    def __init__(self, config: pytest.Config, file: Path) -> None:
        """Takes where they are noted; one of an earlier run is deleted."""
        self._config = config
        self._file = file
        self._failed: dict[str, str] = {}
        file.unlink(missing_ok=True)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Notes one."""
        if report.failed:
            before = self._failed.get(report.nodeid, "")
            self._failed[report.nodeid] = before + f"({report.when})\n{output_of(report)}"
            self._write()
            self._tell(report)

    def pytest_sessionfinish(self) -> None:
        """Writes the file, also when nothing failed."""
        self._write()

    def _tell(self, report: pytest.TestReport) -> None:
        if terminal := self._config.pluginmanager.get_plugin("terminalreporter"):
            crash = getattr(report.longrepr, "reprcrash", None)
            message = (crash.message if crash else report.longreprtext).strip().partition("\n")[0]
            terminal.write_line(f"\nfailed ({report.when}): {report.nodeid}: {message[:200]}")

    def _write(self) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text(json.dumps(self._failed))


class OnceMore:
    """Runs only the tests that failed before, and judges them."""

    def __init__(self, before: dict[str, str]) -> None:
        """Takes what the tests said that failed, by their ids."""
        self._before = before
        self._again: dict[str, str] = defaultdict(str)
        self._failed: set[str] = set()
        self._complaints: list[str] = []

    @property
    def unstable(self) -> list[str]:
        """Those that passed now."""
        return [each for each in self._before if each in self._again and each not in self._failed]

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leaves all others out."""
        wanted = [item for item in items if item.nodeid in self._before]
        if len(self._before) > MOST_RUN_AGAIN:
            self._complaints.append(f"{len(self._before)} tests failed; none is run again where it is so many.")
            wanted = []
        elif missing := self._before.keys() - {item.nodeid for item in wanted}:
            self._complaints.append(f"Failed before, and not found again: {', '.join(sorted(missing))}")
        config.hook.pytest_deselected(items=[item for item in items if item not in wanted])
        items[:] = wanted

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Notes what one says now; one that is skipped has not passed."""
        self._again[report.nodeid] += output_of(report)
        if not report.passed:
            self._failed.add(report.nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Iterator[None]:
        """Fails where something is not as it was promised."""
        if len(self.unstable) > MOST_UNSTABLE:
            self._complaints.append(f"{len(self.unstable)} tests are unstable; {MOST_UNSTABLE} are tolerated.")
        never_run = self._before.keys() - self._again.keys()
        if self._complaints or self._failed or never_run:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        elif not self._before:
            session.exitstatus = pytest.ExitCode.OK
        yield

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Shows what is unstable, with both outputs."""
        if self.unstable:
            terminalreporter.section("unstable: failed at first, and passed when run alone")
        for each in self.unstable:
            terminalreporter.section(each, sep="_")
            terminalreporter.write_line(f"failed {self._before[each]}")
            terminalreporter.write_line(f"passed {self._again[each] or '(without a word)'}")
        for complaint in self._complaints:
            terminalreporter.write_line(f"unstable tests: {complaint}", red=True)
        if self.unstable:
            terminalreporter.write_line(f"unstable tests, to be mended first of all: {len(self.unstable)}", yellow=True)


def output_of(report: pytest.TestReport) -> str:
    """What a test said in one of its phases: the failure, and what it wrote."""
    parts = [report.longreprtext] if report.longrepr else []
    parts += [f"--- {title}\n{text}" for title, text in report.sections if text.strip()]
    return "".join(f"{part}\n" for part in parts)
