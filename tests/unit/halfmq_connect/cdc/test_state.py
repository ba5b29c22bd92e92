"""What is stored at the broker: it stays small, says the same when it is read again, and forgets what is gone."""

from __future__ import annotations

import json
import random

import pytest

from halfmq_connect.cdc import state as module
from halfmq_connect.cdc.errors import CannotFollow
from halfmq_connect.cdc.positions import Gtid, MariaDbPosition, MySqlPosition
from halfmq_connect.cdc.state import MOST_BYTES, GoneTables, State, TableCopy, View

SERVER = "8838c4b4-e7ef-11f1-a085-02fc00000001"
OTHER = "9938c4b4-e7ef-11f1-a085-02fc00000002"


def at(number: int) -> MariaDbPosition:
    return MariaDbPosition.parse(f"0-1-{number}")


def is_after(one: list[int], other: list[int]) -> bool:
    return one > other


def read(raw: bytes) -> State:
    return State.decode(raw, "mariadb", MariaDbPosition.parse)


def test_names_of_many_tables_fit() -> None:
    """As many as once were too large: each of their characters had six bytes."""
    names = [f"shop.{'表' * 60}{number:04d}" for number in range(4000)]
    raw = State(at(7), dict.fromkeys(names)).encode("mariadb")
    assert len(raw) < MOST_BYTES
    assert read(raw) == State(at(7), dict.fromkeys(names))


def test_it_is_the_same_when_it_is_read_again() -> None:
    copies = {
        "shop.halfway": TableCopy(["id"], [View(at(8), [500]), View(at(9), [700])], chunks=3),
        "shop.begun": TableCopy(["id", "part"], [View(at(8))]),
    }
    names = ["shop.one", 'shop.we "ird', "a.b.c", "läden.tablé", "shop.two", ".x"]
    state = State(at(7), {**dict.fromkeys(names), **copies})
    assert read(state.encode("mariadb")) == state


def test_what_earlier_versions_stored_is_read() -> None:
    told = {
        "version": 1,
        "server": "mariadb",
        "position": "0-1-7",
        "tables": {
            "shop.one": None,
            "shop.done": {"key": ["id"], "views": [["0-1-8", [500]], ["0-1-9", None]], "done": True, "chunks": 4},
            "shop.open": {"key": ["id"], "views": [["0-1-9", [700]]], "done": False, "chunks": 2},
        },
    }
    state = read(json.dumps(told).encode())
    assert state.position == at(7)
    assert state.tables == {
        "shop.one": None,
        "shop.done": TableCopy(["id"], [View(at(8), [500]), View(at(9))], done=True, chunks=4),
        "shop.open": TableCopy(["id"], [View(at(9), [700])], chunks=2),
    }
    told["version"] = 3
    with pytest.raises(CannotFollow, match="version 3"):
        read(json.dumps(told).encode())


def test_a_copy_is_forgotten_when_the_log_has_reached_each_of_its_views() -> None:
    copy = TableCopy(["id"], [View(at(9), [500]), View(at(8))], done=True)
    state = State(at(8), {"shop.one": copy})
    state.encode("mariadb")
    assert state.tables == {"shop.one": copy}
    state.position = at(9)
    state.encode("mariadb")
    assert state.tables == {"shop.one": None}


def test_views_of_servers_that_are_behind() -> None:
    """A copy was cut off, and went on from another server, which had less than the first one."""
    copy = TableCopy(["id"], [View(at(9), [500]), View(at(8))], done=True)
    ninth = Gtid("0", 9, "0-1-9")
    assert copy.may_have(ninth)
    assert copy.has(ninth, [500], is_after)
    assert not copy.has(ninth, [501], is_after)


def test_what_is_part_of_a_copy_is_the_same_for_what_comes() -> None:
    """Views are stored without what was read before."""
    chosen = random.Random(5)
    for _ in range(300):
        seen = MySqlPosition()
        views = []
        for to in ([100], [200], None):
            for _ in range(chosen.randint(0, 6)):
                number = chosen.randint(1, 20)
                seen = seen.with_gtid(Gtid(chosen.choice([SERVER, OTHER]), number, ""))
            views.append(View(seen, to))
        position = MySqlPosition()
        for _ in range(chosen.randint(0, 25)):
            position = position.with_gtid(Gtid(chosen.choice([SERVER, OTHER]), chosen.randint(1, 20), ""))
        state = State(position, {"shop.one": TableCopy(["id"], views, done=True)})
        (copy,) = State.decode(state.encode("mysql"), "mysql", MySqlPosition.parse).tables.values()
        for gtid in (Gtid(origin, number, "") for origin in (SERVER, OTHER) for number in range(1, 22)):
            if gtid not in position:
                for key in ([50], [150], [250]):
                    before = TableCopy(["id"], views, done=True).has(gtid, key, is_after)
                    assert before == (copy is not None and copy.has(gtid, key, is_after))


def test_finished_copies_of_a_server_with_a_long_history_are_short() -> None:
    origins = [f"{number:08x}{SERVER[8:]}" for number in range(50)]
    position = MySqlPosition.parse(",".join(f"{origin}:1-1000" for origin in origins))
    view = position.with_gtid(Gtid(origins[0], 1001, ""))
    names = [f"shop.t{number}" for number in range(5000)]
    state = State(position, {name: TableCopy(["id"], [View(view)], done=True) for name in names})
    assert len(state.encode("mysql")) < MOST_BYTES // 2


def test_one_that_is_too_large_names_the_limit_and_what_to_do() -> None:
    state = State(at(7), {f"shop.{'表' * 60}{number:04d}": None for number in range(6000)})
    with pytest.raises(CannotFollow) as found:
        state.encode("mariadb")
    for word in ("6000 tables", "1048576", "1 MiB", "Nothing was skipped", "--new-snapshot", "match", "several"):
        assert word in str(found.value)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_BYTES", 0)


@pytest.mark.usefixtures("small")
def test_tables_that_are_gone_are_forgotten_behind_their_last_change() -> None:
    copy = TableCopy(["id"], [View(at(50))], done=True)
    state = State(at(7), {"shop.stays": None, "shop.gone": None, "shop.again": None, "shop.copied": copy})
    asked: list[list[str]] = []

    def find(names: list[str]) -> tuple[set[str], MariaDbPosition]:
        asked.append(names)
        return {"shop.gone", "shop.again"}, at(9)

    gone = GoneTables(state, find)
    gone.look(100)
    gone.look(100)
    assert asked == [["shop.stays", "shop.gone", "shop.again"]]
    state.position = at(8)
    gone.forget()
    assert len(state.tables) == 4
    gone.changed({"shop.again"})
    state.position = at(9)
    gone.forget()
    assert list(state.tables) == ["shop.stays", "shop.again", "shop.copied"]


def test_it_looks_when_the_state_is_large_and_has_grown() -> None:
    looks = 0
    found: set[str] = set()

    def find(names: list[str]) -> tuple[set[str], MariaDbPosition]:
        nonlocal looks
        looks += 1
        return found, at(7)

    def grow(first: int, last: int) -> list[int]:
        """The sizes at which it looks."""
        sizes = []
        for size in range(first, last, 1024):
            before = looks
            gone.look(size)
            gone.forget()
            if looks > before:
                sizes.append(size)
        return sizes

    state = State(at(7), {"shop.gone": None})
    gone = GoneTables(state, find)
    sizes = grow(0, MOST_BYTES)
    assert sizes[0] == MOST_BYTES // 2 + 1024
    assert len(sizes) < 20
    assert MOST_BYTES - sizes[-1] < 4096
    found = {"shop.gone"}
    gone.look(MOST_BYTES)
    gone.forget()
    assert state.tables == {}
    found = set()
    half = MOST_BYTES // 2
    assert grow(half + 2048, half + MOST_BYTES // 16) == []  # It is small enough for a while.
    assert len(grow(half + MOST_BYTES // 16, half + MOST_BYTES // 8)) == 1
