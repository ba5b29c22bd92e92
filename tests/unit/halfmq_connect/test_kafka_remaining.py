"""Records of Kafka's partitions that are left: not the marks of transactions, as far as that is known."""

from __future__ import annotations

from halfmq_connect.kafka.remaining import Remaining


def test_all_behind_the_position_is_left_until_the_client_has_come_to_the_end() -> None:
    remaining: Remaining[int] = Remaining()
    assert remaining.left(0, 10, 15) == 5
    assert remaining.left(0, 15, 15) == 0
    assert remaining.left(0, 16, 15) == 0, "what Kafka told is older"


def test_marks_at_the_end_are_not_left_once_all_records_are_carried() -> None:
    remaining: Remaining[int] = Remaining()
    for offset in (10, 11, 12):
        remaining.came(0, offset)
    remaining.ended(0, 14)
    assert remaining.left(0, 11, 14) == 3, "two records, and whether the last offset is one is not asked"
    assert remaining.left(0, 13, 14) == 0


def test_what_is_behind_an_open_transaction_is_left() -> None:
    remaining: Remaining[int] = Remaining()
    remaining.ended(0, 14)
    assert remaining.left(0, 10, 100) == 86


def test_what_comes_later_is_left() -> None:
    remaining: Remaining[int] = Remaining()
    remaining.ended(0, 14)
    remaining.came(0, 14)
    assert remaining.left(0, 13, 16) == 2


def test_partitions_are_apart_and_one_that_another_replica_reads_is_forgotten() -> None:
    remaining: Remaining[str] = Remaining()
    remaining.ended("a", 14)
    assert remaining.left("b", 10, 14) == 4
    remaining.forget("a")
    assert remaining.left("a", 10, 14) == 4
