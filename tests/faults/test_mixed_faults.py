"""Several faults at once, as a seed decides, on each of the databases: nothing lost, nothing doubled, nothing appears.

HALFMQ_FAULT_CYCLES is the number of cycles, over all databases (6; the full campaign is 500), HALFMQ_FAULT_SEED is the
seed of the first one. A cycle that failed is repeated by its seed and HALFMQ_FAULT_CYCLES=1, as far as the moments at
which things happen allow.
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import pytest

from faults.mixed.cycle import run_cycle
from faults.mixed.site import Site
from support.databases import ALL_KINDS, AnyKind

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CYCLES = int(os.environ.get("HALFMQ_FAULT_CYCLES") or 6)
SEED = int(os.environ.get("HALFMQ_FAULT_SEED") or random.randrange(1 << 30))
SHARE = -(-CYCLES // len(ALL_KINDS))


@pytest.fixture(params=ALL_KINDS)
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    kind: AnyKind = request.param
    with Site(kind, tmp_path) as made:
        yield made


@pytest.mark.timeout(600 + 240 * SHARE)
def test_nothing_contradicts_what_was_acknowledged(site: Site) -> None:
    wrong: dict[int, list[str]] = {}
    for seed in range(SEED, SEED + SHARE):
        found = run_cycle(site, seed)
        if found:
            wrong[seed] = found
    assert wrong == {}
