"""Judges that are kept, what they remember, and groups by their numbers."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import weakref
from typing import TYPE_CHECKING

import pytest

from broker.domain.access import Action, Kind, Principal, Rules, rule_of
from broker.services import judges as of_judges
from broker.services.judges import LONGEST_NAME, Judges
from broker.services.rights import Numbered

if TYPE_CHECKING:
    from broker.services.judges import Judge

ALICE = Principal("alice", address="10.1.2.3")
ALL, NONE = Rules([rule_of("user:alice", "*", "*", ["all"])]), Rules()


def remembered(judges: Judges) -> int:
    """Answers, and what holds them."""
    memory = judges.memory
    return sum(len(each) for each in memory.answers) + len(memory.answers) + len(memory.judges)


def test_a_judge_that_is_kept_knows_new_rules_at_once() -> None:
    judges = Judges()
    may = judges.judge(ALICE, Action.PUB, Kind.TOPIC)
    for rules, allowed in ((ALL, True), (NONE, False), (ALL, True)):
        version = judges.version
        judges.replace(rules)
        assert judges.version == may.version == version + 1
        for judge in (may, judges.judge(ALICE, Action.PUB, Kind.TOPIC)):
            assert [judge("a"), judge("a"), judge.once("a")] == [allowed] * 3


def test_there_is_one_judge_for_each_principal_action_and_kind() -> None:
    judges = Judges()
    judges.replace(ALL)
    may = judges.judge(ALICE, Action.PUB, Kind.TOPIC)
    assert judges.judge(Principal("alice", address="10.1.2.3"), Action.PUB, Kind.TOPIC) is may
    for other in (
        judges.judge(Principal("bob", address="10.1.2.3"), Action.PUB, Kind.TOPIC),
        judges.judge(Principal("alice", address="10.1.2.4"), Action.PUB, Kind.TOPIC),
        judges.judge(Principal("alice", frozenset({"ops"}), address="10.1.2.3"), Action.PUB, Kind.TOPIC),
        judges.judge(ALICE, Action.SUB, Kind.TOPIC),
        judges.judge(ALICE, Action.PUB, Kind.GROUP),
    ):
        assert other is not may
        assert other("a") == (other.principal.name == "alice")


def test_of_several_actions_one_is_enough() -> None:
    judges = Judges()
    judges.replace(Rules([rule_of("user:alice", "topic", "a", ["consume"])]))
    assert judges.judge(ALICE, Action.SUB | Action.GET, Kind.TOPIC)("a")
    assert not judges.judge(ALICE, Action.PUB | Action.GET, Kind.TOPIC)("a")


def test_names_that_nothing_has_are_not_remembered() -> None:
    judges = Judges()
    judges.replace(ALL)
    may = judges.judge(ALICE, Action.PUB, Kind.TOPIC)
    assert may("x" * LONGEST_NAME)
    before = remembered(judges)
    for number in range(1000):
        assert not may(f"{number}".ljust(LONGEST_NAME + 1, "x"))
    assert remembered(judges) == before


@pytest.mark.parametrize("rules", [ALL, NONE])
def test_what_is_remembered_is_bounded_and_right(rules: Rules, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_judges, "MOST_REMEMBERED", 100)
    judges = Judges()
    judges.replace(rules)
    kept = judges.judge(ALICE, Action.PUB, Kind.TOPIC)
    for number in range(2000):
        for may in (kept, judges.judge(ALICE, Action.SUB, Kind.TOPIC)):
            assert may(f"topic-{number}") == may("same") == (rules is ALL)
        assert remembered(judges) <= 100
    version = judges.version
    for number in range(2000):
        principal = Principal("alice", address=f"10.0.{number // 256}.{number % 256}")
        assert judges.judge(principal, Action.PUB, Kind.TOPIC)("a") == (rules is ALL)
        assert remembered(judges) <= 100
    assert judges.version == version
    # A judge that is not asked any more keeps nothing of what was forgotten meanwhile.
    mark, answers = kept._known
    assert mark is not judges.memory.mark
    assert answers == {}


def test_judges_that_are_not_asked_any_more_keep_no_rules() -> None:
    judges = Judges()
    kept, gone = [], []
    for _ in range(10):
        rules = Rules([])
        gone.append(weakref.ref(rules))
        judges.replace(rules)
        del rules
        kept.append(judges.judge(ALICE, Action.PUB, Kind.TOPIC))
        kept[-1]("a")
    assert [each() is None for each in gone] == [True] * 9 + [False]


def test_what_was_forgotten_is_not_held_by_a_cycle() -> None:
    judges = Judges()
    judges.replace(ALL)
    judges.judge(ALICE, Action.PUB, Kind.TOPIC)("a")
    before = judges.memory
    judges.replace(NONE)
    gc.disable()
    try:
        assert sys.getrefcount(before) == 2  # `before`, and the argument.
    finally:
        gc.enable()


def test_in_threads_the_answer_is_that_of_rules_that_counted_meanwhile() -> None:
    judges = Judges()
    judges.replace(ALL)
    may, wrong, go_on = judges.judge(ALICE, Action.PUB, Kind.TOPIC), [], True

    def ask() -> None:
        number = 0
        while go_on:
            number += 1
            name = f"topic-{number % 50}"
            version, allowed = may.version, may(name)
            # Odd versions allow everything; between two looks it may have changed.
            if allowed != bool(version % 2) and may.version == version:
                wrong.append((version, name))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(2000):
        judges.replace(NONE if judges.version % 2 else ALL)
        if number % 100 == 0:
            threading.Event().wait(0.001)
    go_on = False
    for thread in threads:
        thread.join()
    assert not wrong


class Groups:
    """Names by number, and how often they were read."""

    def __init__(self, *names: str) -> None:
        self.names = dict(enumerate(names, 1))
        self.reads = 0

    async def read(self) -> dict[int, str]:
        self.reads += 1
        return dict(self.names)


def allowing(*names: str) -> tuple[Judges, Judge]:
    judges = Judges()
    judges.replace(Rules([rule_of("user:alice", "group", name, ["consume"]) for name in names]))
    return judges, judges.judge(ALICE, Action.SUB, Kind.GROUP)


async def test_numbers_of_what_is_allowed() -> None:
    groups = Groups("shop", "bank", "shop-2")
    judges, may = allowing("shop*")
    numbered = Numbered(groups.read, pause=0.0)
    for _ in range(3):
        assert await numbered.allowed(may) == {1, 3}
    assert groups.reads == 1
    judges.replace(Rules([rule_of("user:alice", "group", "bank", ["consume"])]))
    assert await numbered.allowed(may) == {2}
    assert groups.reads == 1


async def test_a_group_that_came_is_known_after_a_read_or_when_it_is_noted() -> None:
    groups = Groups("shop")
    _, may = allowing("shop*")
    numbered = Numbered(groups.read, pause=0.0)
    assert await numbered.allowed(may) == {1}
    groups.names[2] = "shop-2"
    assert await numbered.allowed(may) == {1}
    assert await numbered.allowed(may, again=True) == {1, 2}
    assert groups.reads == 2
    numbered.note(3, "shop-3")
    numbered.note(4, "bank")
    assert await numbered.allowed(may) == {1, 2, 3}
    assert groups.reads == 2
    # One that is deleted again is no harm: its number never comes back.
    del groups.names[1]
    groups.names[5] = "shop-5"
    assert await numbered.allowed(may, again=True) >= {2, 5}


async def test_what_is_noted_during_a_read_stays() -> None:
    reading, go_on = asyncio.Event(), asyncio.Event()
    reads = 0

    async def read() -> dict[int, str]:
        nonlocal reads
        reads += 1
        if reads > 1:
            reading.set()
            await go_on.wait()
        return {1: "shop"}

    _, may = allowing("shop*")
    numbered = Numbered(read, pause=0.0)
    assert await numbered.allowed(may) == {1}
    asked = asyncio.create_task(numbered.allowed(may, again=True))
    await reading.wait()
    numbered.note(2, "shop-2")
    go_on.set()
    assert await asked == {1, 2}
    _, other = allowing("shop*")
    assert await numbered.allowed(other) == {1, 2}


async def test_principals_with_the_same_rights_share_their_numbers() -> None:
    groups = Groups(*(f"shop-{number}" for number in range(100)))
    judges, _ = allowing("shop*")
    numbered = Numbered(groups.read)
    found = [
        await numbered.allowed(judges.judge(Principal("alice", address=f"10.0.0.{n}"), Action.SUB, Kind.GROUP))
        for n in range(20)
    ]
    assert len({id(each) for each in found}) == 1


async def test_groups_that_come_and_go_leave_nothing_behind() -> None:
    groups = Groups()
    _, may = allowing("shop*")
    numbered = Numbered(groups.read, pause=0.0)
    for number in range(1, 200):
        groups.names = {number * 100 + each: f"shop-{each}" for each in range(100)}
        assert await numbered.allowed(may, again=True) >= groups.names.keys()
    assert len(numbered._came) < 2000
    assert len(await numbered.allowed(may)) < 2000
