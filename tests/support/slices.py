"""Which tests a run leaves out: of two that differ in their database server alone, one."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING
from zlib import crc32

from support.databases import KINDS

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def one_server_each(config: pytest.Config, items: list[pytest.Item], folder: Path) -> None:
    """Keeps each test of a folder on one of the servers, in turns; which one is the same in every process."""
    alike: defaultdict[str, dict[str, pytest.Item]] = defaultdict(dict)
    for item in items:
        call = getattr(item, "callspec", None)
        servers = [value for value in call.params.values() if value in KINDS] if call else []
        if len(servers) == 1 and item.path.is_relative_to(folder):
            alike[item.nodeid.replace(servers[0], "*")][servers[0]] = item
    pairs = [(name, on) for name, on in alike.items() if len(on) == len(KINDS)]
    left_out = {on[KINDS[crc32(name.encode()) % len(KINDS)]] for name, on in pairs}
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]
