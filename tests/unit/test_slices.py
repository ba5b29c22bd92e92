"""In CI each test runs with a part of its cases, and over the turns with all of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import cast

import pytest

from support.slices import OF_CASES, cases_in_turns


class Hook:
    """Takes what was left out."""

    def __init__(self) -> None:
        self.left_out: list[Item] = []

    def pytest_deselected(self, items: list[Item]) -> None:
        self.left_out += items


class Config:
    """What is asked of pytest."""

    def __init__(self) -> None:
        self.hook = Hook()


class Item:
    """A test with one of its cases."""

    def __init__(self, nodeid: str) -> None:
        self.nodeid = nodeid
        self.path = Path(nodeid.partition("::")[0])

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        assert name == "in_turns"
        return pytest.mark.in_turns("campaigns").mark if self.nodeid in CAMPAIGNS else None


SINGLE = "tests/faults/test_some.py::test_alone"
MANY = [f"tests/faults/test_some.py::test_many[{number}-{kind}]" for number in range(4) for kind in ("a", "b", "c")]
TWO = [f"tests/gateway/test_some.py::test_two[{kind}]" for kind in ("sqlite", "mysql")]
CAMPAIGNS = [f"tests/spark/test_{name}.py::test_nothing_is_lost" for name in ("kills", "cluster", "flights")]
WHOLE = [f"tests/unit/test_some.py::test_quick[{number}]" for number in range(9)]

ALL = (SINGLE, *MANY, *TWO, *CAMPAIGNS, *WHOLE)


def kept(turn: str) -> tuple[list[str], list[str]]:
    """The names of what is kept, and of what is left out."""
    items = [Item(name) for name in ALL]
    config = Config()
    cases_in_turns(cast("pytest.Config", config), cast("list[pytest.Item]", items), turn, Path("tests/unit"))
    return [item.nodeid for item in items], [item.nodeid for item in config.hook.left_out]


def test_each_test_is_kept_with_a_third_of_its_cases_and_one_at_least() -> None:
    names, left_out = kept("1")
    functions = Counter(name.partition("[")[0] for name in names)
    assert sum(functions.pop(name, 0) for name in CAMPAIGNS) == 1
    assert functions == {
        SINGLE: 1,
        "tests/faults/test_some.py::test_many": 4,
        "tests/gateway/test_some.py::test_two": 1,
    } | {"tests/unit/test_some.py::test_quick": len(WHOLE)}
    assert sorted(names + left_out) == sorted(ALL)


def test_a_turn_has_the_same_cases_in_every_process() -> None:
    assert kept("7")[0] == kept("7")[0] != kept("8")[0]


def test_every_case_has_its_turn() -> None:
    turns = Counter(name for turn in range(60) for name in kept(str(turn))[0])
    assert turns.keys() == set(ALL)
    assert min(turns[name] for name in MANY) > 60 // OF_CASES // 3
