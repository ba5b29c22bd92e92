"""Ratios of two sides that were measured in turns, and their bounds."""

from __future__ import annotations

import random

import pytest

from halfmq_cli.bench.paired import Round, compared


def rounds(*per_second: float, cpu: float = 0.5) -> list[Round]:
    return [Round(round(1000 * each), 1000.0, cpu, cpu) for each in per_second]


def test_rates_and_costs() -> None:
    figures = compared(rounds(100, 300), rounds(50, 150, cpu=1.0))
    assert (figures["without_per_s"], figures["with_per_s"], figures["ratio"]) == (200, 100, 0.5)
    assert (figures["without_broker_us"], figures["with_broker_us"]) == (2.5, 10)
    assert (figures["without_client_us"], figures["with_client_us"]) == (2.5, 10)
    assert figures["broker_ratio"] == pytest.approx(4)


def test_two_rounds_are_added() -> None:
    assert Round(10, 1.0, 0.2, 0.1) + Round(20, 2.0, 0.1, 0.3) == Round(30, 3.0, pytest.approx(0.3), 0.4)


@pytest.mark.parametrize(
    ("count", "left_out"), [(1, None), (5, None), (6, 0), (8, 0), (9, 1), (12, 2), (20, 5), (40, 13)]
)
def test_bounds_leave_as_many_out_as_may_be(count: int, left_out: int | None) -> None:
    """Those of the sign test, as tables have them."""
    one = [100.0] * count
    other = [100.0 + number for number in range(count)]
    figures = compared(rounds(*one), rounds(*other))
    if left_out is None:
        assert figures["ratio_low"] is figures["ratio_high"] is None
    else:
        assert figures["ratio_low"] == pytest.approx(1 + left_out / 100)
        assert figures["ratio_high"] == pytest.approx(1 + (count - 1 - left_out) / 100)


def test_a_few_bad_rounds_do_not_move_the_ratio() -> None:
    chance = random.Random(5)
    one = [1000 * chance.uniform(0.9, 1.1) for _ in range(20)]
    other = [0.97 * each * chance.uniform(0.98, 1.02) for each in one]
    other[3] = other[11] = 1.0
    figures = compared(rounds(*one), rounds(*other))
    assert figures["ratio"] == pytest.approx(0.97, abs=0.01)
    assert figures["ratio_low"] is not None
    assert figures["ratio_high"] is not None
    assert figures["ratio_low"] < 0.97 < figures["ratio_high"]
