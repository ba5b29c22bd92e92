"""Which tests a run leaves out: of those that differ in their database server alone, all but one; in CI, more."""

from __future__ import annotations

import os
from collections import defaultdict
from typing import TYPE_CHECKING
from zlib import crc32

from support.databases import ALL_KINDS, KINDS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pytest

TURN = os.environ.get("HALFMQ_TEST_TURN") or None
"""A number that differs from one run in CI to the next: a commit's. None: each test runs with all of its cases."""

ONE_OF = 3
"""In CI, one of so many runs, and one at least."""

WHOLE = frozenset({"fuzz", "models", "unit"})
"""Folders whose tests all run with all of their cases."""

BY_FILE = frozenset({"acceptance", "cells", "connect", "console", "faults", "gateway", "spark"})
"""Folders with processes, of whose files a part of the tests runs; of others each test, with a part of its cases."""


def in_turns(config: pytest.Config, items: list[pytest.Item], turn: str, tests: Path) -> None:
    """Keeps a part of the tests; which one is the same in every process, and another one in the next turn.

    Args:
        config: pytest's.
        items: All tests.
        turn: Which part.
        tests: The folder of all of them.
    """
    alike: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        folder = item.path.relative_to(tests).parts[0]
        if folder not in WHOLE:
            marker = item.get_closest_marker("in_turns")
            parted = "::" if folder in BY_FILE else "["
            alike[marker.args[0] if marker else item.nodeid.partition(parted)[0]].append(item)
    left_out = set()
    for each in alike.values():
        shuffled = sorted(each, key=lambda item: crc32(f"{turn} {item.nodeid}".encode()))
        left_out.update(shuffled[-(-len(each) // ONE_OF) :])
    _leave_out(config, items, left_out)


def one_server_each(config: pytest.Config, items: list[pytest.Item], folder: Path, *further: str) -> None:
    """Keeps each test of a folder on one of the servers, in turns; which one is the same in every process.

    Args:
        config: pytest's.
        items: All tests.
        folder: That of the tests in question.
        further: Servers beside MariaDB and MySQL that take their turns.
    """
    if further:
        _one_each(config, items, folder, (*KINDS, *further))
    _one_each(config, items, folder, KINDS)


def one_database_each(config: pytest.Config, items: list[pytest.Item], folder: Path) -> None:
    """Keeps each test of a folder on one of the databases, or of the servers where it has only these, in turns."""
    _one_each(config, items, folder, ALL_KINDS)
    _one_each(config, items, folder, KINDS)


def _one_each(config: pytest.Config, items: list[pytest.Item], folder: Path, kinds: Sequence[str]) -> None:
    alike: defaultdict[str, dict[str, pytest.Item]] = defaultdict(dict)
    for item in items:
        call = getattr(item, "callspec", None)
        named = [value for value in call.params.values() if value in kinds] if call else []
        if len(named) == 1 and item.path.is_relative_to(folder):
            alike[item.nodeid.replace(named[0], "*")][named[0]] = item
    left_out: set[pytest.Item] = set()
    for name, on in alike.items():
        if len(on) == len(kinds):
            kept = kinds[crc32(name.encode()) % len(kinds)]
            left_out |= {item for kind, item in on.items() if kind != kept}
    _leave_out(config, items, left_out)


def _leave_out(config: pytest.Config, items: list[pytest.Item], left_out: set[pytest.Item]) -> None:
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]
