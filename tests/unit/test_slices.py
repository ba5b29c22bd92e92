"""In CI a part of the tests runs, and over the turns all of them with all of their cases."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import cast

import pytest

from support.slices import ONE_OF, in_turns


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


SINGLE = ["tests/conformance/test_some.py::test_alone", "tests/faults/test_alone.py::test_alone"]
CASES = [f"tests/conformance/test_some.py::test_{name}[{kind}]" for name in ("one", "two") for kind in range(7)]
TWO = [f"tests/ways/test_some.py::test_two[{kind}]" for kind in ("sqlite", "mysql")]
OF_A_FILE = [f"tests/faults/test_many.py::test_{number}[{kind}]" for number in range(4) for kind in ("a", "b", "c")]
CAMPAIGNS = [f"tests/spark/test_{name}.py::test_nothing_is_lost" for name in ("kills", "cluster", "flights")]
WHOLE = [f"tests/unit/test_some.py::test_quick[{number}]" for number in range(9)]
ALL = (*SINGLE, *CASES, *TWO, *OF_A_FILE, *CAMPAIGNS, *WHOLE)


def kept(turn: str) -> tuple[list[str], list[str]]:
    """The names of what is kept, and of what is left out."""
    items = [Item(name) for name in ALL]
    config = Config()
    in_turns(cast("pytest.Config", config), cast("list[pytest.Item]", items), turn, Path("tests"))
    return [item.nodeid for item in items], [item.nodeid for item in config.hook.left_out]


def test_a_third_is_kept_and_one_at_least() -> None:
    names, left_out = kept("1")
    functions = Counter(name.partition("[")[0] for name in names)
    for name in SINGLE:
        assert functions.pop(name) == 1
    assert functions.pop("tests/conformance/test_some.py::test_one") == 3
    assert functions.pop("tests/conformance/test_some.py::test_two") == 3
    assert functions.pop("tests/ways/test_some.py::test_two") == 1
    assert functions.pop("tests/unit/test_some.py::test_quick") == len(WHOLE)
    assert sum(functions.pop(name, 0) for name in CAMPAIGNS) == 1
    assert {name.partition("::")[0] for name in functions} == {"tests/faults/test_many.py"}
    assert functions.total() == len(OF_A_FILE) // ONE_OF
    assert sorted(names + left_out) == sorted(ALL)


def test_a_turn_has_the_same_tests_in_every_process() -> None:
    assert kept("7")[0] == kept("7")[0] != kept("8")[0]


def test_everything_has_its_turn() -> None:
    turns = Counter(name for turn in range(60) for name in kept(str(turn))[0])
    assert turns.keys() == set(ALL)
    assert min(turns.values()) > 60 // ONE_OF // 3
