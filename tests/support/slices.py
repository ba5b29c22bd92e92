"""Which tests a run leaves out: of two that differ in their database server alone, one."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING
from zlib import crc32

from support.databases import ALL_KINDS, KINDS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pytest


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
    left_out = set()
    for name, on in alike.items():
        if len(on) == len(kinds):
            kept = kinds[crc32(name.encode()) % len(kinds)]
            left_out |= {item for kind, item in on.items() if kind != kept}
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]
