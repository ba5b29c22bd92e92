"""Events that servers rarely write: what is not known stops the subscription, and is never passed over."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from halfmq_connect.cdc.binlog import events
from halfmq_connect.cdc.binlog.transactions import Transactions, beginning_of
from halfmq_connect.cdc.charsets import Charsets
from halfmq_connect.cdc.errors import CannotFollow

if TYPE_CHECKING:
    from collections.abc import Sequence


class Everything:
    def wants(self, database: str, table: str) -> bool:
        return True

    def leaves_out(self, database: str, table: str, names: Sequence[str], key: Sequence[int]) -> set[str]:
        return set()

    def names_wanted(self, text: str, database: str) -> bool:
        return "orders" in text


def read(*read: events.Event) -> list[object]:
    return list(Transactions(Charsets({}), Everything(), mariadb=False).read(read))


@pytest.mark.parametrize(("kind", "words"), [(26, "gap"), (43, "kind 43"), (172, "kind 172"), (42, "tags")])
def test_what_is_not_known_stops_it(kind: int, words: str) -> None:
    with pytest.raises(CannotFollow, match=words):
        read(events.Event(0, kind, 1, 4, 0, b""))


def test_what_changes_no_rows_is_passed_over() -> None:
    passed = [events.Event(0, kind, 1, 4, 0, b"") for kind in sorted(events.PASSED_OVER)]
    assert read(*passed, events.Event(0, 99, 1, 4, events.IGNORABLE, b"")) == []


def test_a_mark_of_a_comment_in_a_text_hides_no_table() -> None:
    statement = b"UPDATE (SELECT '#' mark) marks, orders SET item = mark"
    body = bytes(8) + b"\4" + bytes(4) + b"shop\0" + statement
    with pytest.raises(CannotFollow, match="as a statement"):
        read(events.Event(0, events.QUERY, 1, 4, 0, body))


@pytest.mark.parametrize("part", ["/* ", "-- ", "# ", "*/", "/*!"])
def test_long_statements_of_others_take_no_time(part: str) -> None:
    statement = f"CREATE PROCEDURE p() SELECT '{part * 1_000_000}'".encode()
    body = bytes(8) + b"\5" + bytes(4) + b"other\0" + statement
    assert read(events.Event(0, events.QUERY, 1, 4, 0, body)) == []


@pytest.mark.parametrize(
    ("statement", "beginning"),
    [
        ("/* why */ TRUNCATE /*really*/ TABLE -- this one\n orders # now\n", "TRUNCATE   TABLE  \n orders"),
        ("COMMIT", "COMMIT"),
        ("/*!40000 ALTER TABLE t */", "/*!40000 ALTER TABLE t */"),
        ("SELECT /* without an end", "SELECT /* without an end"),
        (f"/* {'long ' * 1000} */ TRUNCATE orders", "TRUNCATE orders"),
    ],
)
def test_the_beginning_of_a_statement(statement: str, beginning: str) -> None:
    assert beginning_of(statement).split() == beginning.split()
