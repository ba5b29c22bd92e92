"""The simulation behind the decision on cells: where topics are placed, and what moves."""

from __future__ import annotations

import importlib.util
import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from types import ModuleType

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "cells" / "placement.py"
CELLS = range(16)


@pytest.fixture(scope="module")
def placement() -> ModuleType:
    spec = importlib.util.spec_from_file_location("cells_placement", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def loads(placement: ModuleType) -> dict[str, float]:
    drawn: dict[str, float] = placement.zipf(1000, 0.8, random.Random(7))
    return drawn


def test_by_hash_an_added_cell_takes_topics_and_nothing_else_moves(
    placement: ModuleType, loads: dict[str, float]
) -> None:
    before, after = placement.rendezvous(loads, CELLS), placement.rendezvous(loads, range(17))
    changed = {topic for topic in loads if before[topic] != after[topic]}
    assert {after[topic] for topic in changed} == {16}
    assert 30 < len(changed) < 90


def test_by_hash_only_the_topics_of_a_removed_cell_move(placement: ModuleType, loads: dict[str, float]) -> None:
    before, after = placement.rendezvous(loads, CELLS), placement.rendezvous(loads, range(1, 16))
    assert {before[topic] for topic in loads if before[topic] != after[topic]} == {0}


def test_moves_end_when_no_cell_has_more_than_is_allowed(placement: ModuleType, loads: dict[str, float]) -> None:
    placed = placement.rendezvous(loads, CELLS)
    levelled = placement.level(placed, loads, CELLS)
    assert placement.imbalance(placed, loads, CELLS) > placement.ALLOWED
    assert placement.imbalance(levelled, loads, CELLS) <= placement.ALLOWED
    assert placement.moved(placed, levelled, loads)[0] < 50


def test_a_topic_that_is_too_large_for_a_share_stays_alone(placement: ModuleType) -> None:
    loads = {"large": 0.5, **{f"small-{number}": 0.05 for number in range(10)}}
    levelled = placement.level(placement.rendezvous(loads, range(4)), loads, range(4))
    assert placement.imbalance(levelled, loads, range(4)) == pytest.approx(placement.lower_bound(loads, 4))


def test_the_table_has_a_row_for_each_way(placement: ModuleType) -> None:
    table = placement.table(2, 1, [0.8])
    assert [row.split(" | ")[1] for row in table.splitlines()[2:6]] == list(placement.WAYS)
