"""The overview: what presses most comes first, with the command that leads on; what is not told is said."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from client_core.admin import BrokerStatus, GroupLag, Overview, PendingOfGroup
from halfmq_cli.admin.status import Status, status_page

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
BROKER = BrokerStatus("one", "desk", 7, "127.0.0.1:8085", "1.0", NOON, NOON, False, 1, 2, None)


def overview(
    *pending: PendingOfGroup, letters: dict[str, int] | None = None, groups: int = 0, age: float = 0
) -> Overview:
    return Overview(
        time=NOON,
        database="MariaDB 10.11",
        schema_version="0012",
        pending=pending,
        ages=(),
        topics=3,
        consumer_groups=2,
        scheduled=1,
        released=100,
        stored=50,
        stored_bytes=2048,
        dead_letters=400 if groups else 0,
        dead_letters_by_group=letters or {},
        dead_letter_groups=groups,
        retention_behind=None,
        age=timedelta(seconds=age),
    )


def of(group: str, prepared: int = 0, parked: int = 0, minutes: int = 0, overdue: int = 0) -> PendingOfGroup:
    return PendingOfGroup(
        group,
        prepared,
        parked,
        NOON - timedelta(minutes=minutes) if minutes else None,
        NOON - timedelta(minutes=overdue) if overdue else None,
    )


def test_groups_with_parked_transactions_come_first_and_then_the_oldest() -> None:
    found = overview(of("a", 1, minutes=1), of("b", 5, minutes=90, overdue=2), of("c", parked=3))
    lines = status_page(Status([], found, [], {})).text()
    place = lines.index("transactions in doubt, by producer group (3)")
    assert [line.split() for line in lines[place + 2 : place + 5]] == [
        ["c", "3", "-", "-", "-"],
        ["b", "-", "5", "1h30m", "2m"],
        ["a", "-", "1", "1m", "-"],
    ]
    assert lines[-3:] == [
        "to look at",
        "  parked transactions wait for an operator: halfmq admin tx list --parked",
        "  checks of group b are overdue: is a producer of it connected? halfmq admin clients --producers --group b",
    ]


def test_a_quiet_system_has_nothing_to_look_at() -> None:
    lines = status_page(Status([], overview(), [], {})).text()
    assert "to look at" not in lines
    assert "  messages        50 kept, 2.0 KiB; 1 scheduled" in lines


def test_what_is_not_told_is_said() -> None:
    lines = status_page(Status(None, None, None, None)).text()
    assert sum("not told" in line for line in lines) == 4


def test_groups_with_dead_letters_that_are_left_out_are_counted() -> None:
    letters = {f"g{number}": 40 - number for number in range(12)}
    lines = status_page(Status([], overview(letters=letters, groups=140), [], letters)).text()
    place = lines.index("dead letters (140)")
    assert [line.split() for line in lines[place + 1 : place + 3]] == [["group", "kept"], ["g0", "40"]]
    assert lines[place + 12 : place + 14] == ["  ... 130 more", "  400 dead letters in all"]


def test_dead_letters_of_groups_that_are_not_told_are_counted() -> None:
    found = replace(overview(), dead_letters=7)
    lines = status_page(Status([], found, [], {})).text()
    assert lines[lines.index("dead letters") + 1].startswith("  7 in all; by group not told:")


def test_figures_that_are_not_new_say_so() -> None:
    assert not any("counted" in line for line in status_page(Status([], overview(age=1.9), [], {})).text())
    assert "  counted         3s ago" in status_page(Status([], overview(age=3), [], {})).text()


def test_long_parts_are_cut_and_silent_brokers_named() -> None:
    lags = [GroupLag(f"g{number}", "t", 1, 1, None, 0, None, 0, 0) for number in range(12)]
    lines = status_page(Status([BROKER], overview(), lags, {})).text()
    assert "  ... 2 more" in lines
    assert lines[-1] == "  broker one is silent"
