"""When to check a transaction, and when to deliver a message again."""

from __future__ import annotations

import pytest

from broker.domain.check_policy import SECOND, CheckPolicy
from broker.domain.dead_letter import dead_letter_topic
from broker.domain.retry import (
    DEFAULT_MAX_ATTEMPTS,
    HOUR,
    MINUTE,
    ROCKETMQ_DELAYS,
    RetryPolicy,
)
from broker.errors import ConfigurationError


def test_the_check_defaults_are_rocketmqs() -> None:
    assert CheckPolicy() == CheckPolicy(first_check=6 * SECOND, interval=30 * SECOND, max_checks=15)


@pytest.mark.parametrize(("requested", "due"), [(0, 6), (1, 6), (5, 6), (6, 6), (7, 7), (3600, 3600)])
def test_the_first_check_is_later_when_asked_never_earlier(requested: int, due: int) -> None:
    assert CheckPolicy().first_due(100, requested * SECOND) == 100 + due * SECOND


def test_checks_follow_in_an_interval() -> None:
    assert CheckPolicy(interval=7 * SECOND).next_due(100) == 100 + 7 * SECOND


@pytest.mark.parametrize(("own", "limit"), [(None, 15), (0, 15), (1, 1), (30, 30)])
def test_an_operator_can_grant_more_checks(own: int | None, limit: int) -> None:
    assert CheckPolicy().limit_for(own) == limit


@pytest.mark.parametrize(
    ("field", "wrong", "right"),
    [
        ("first_check", [-1], [0, 1]),
        ("interval", [-1, 0, 9_999], [10_000, 10_001]),
        ("max_checks", [-1, 0, 1001], [1, 2, 999, 1000]),
    ],
)
def test_times_that_make_no_sense_are_refused(field: str, wrong: list[int], right: list[int]) -> None:
    for value in right:
        assert getattr(CheckPolicy(**{field: value}), field) == value
    for value in wrong:
        with pytest.raises(ConfigurationError) as refused:
            CheckPolicy(**{field: value})
        assert refused.value.field == {"interval": "check_interval"}.get(field, field)


def test_the_retry_table_is_rocketmqs() -> None:
    seconds = [1, 5, 10, 30, *(60 * n for n in range(1, 11)), 1200, 1800, 3600, 7200]
    assert list(ROCKETMQ_DELAYS) == [second * SECOND for second in seconds]
    assert (MINUTE, HOUR) == (60 * SECOND, 3600 * SECOND)


@pytest.mark.parametrize(
    ("attempt", "delay"), [(0, 1), (1, 1), (2, 5), (4, 30), (5, 60), (17, 3600), (18, 7200), (19, 7200), (1000, 7200)]
)
def test_the_delay_after_an_attempt(attempt: int, delay: int) -> None:
    assert RetryPolicy().delay_after(attempt) == delay * SECOND


@pytest.mark.parametrize("most", [1, 2, DEFAULT_MAX_ATTEMPTS])
def test_the_last_attempt(most: int) -> None:
    exhausted = [RetryPolicy(most).exhausted(attempt) for attempt in (most - 1, most, most + 1)]
    assert exhausted == [False, True, True]


def test_a_message_is_retried_sixteen_times_by_default() -> None:
    assert sum(not RetryPolicy().exhausted(attempt) for attempt in range(1, 100)) == 16


def test_the_dead_letter_topic_has_rocketmqs_name() -> None:
    assert dead_letter_topic("billing") == "%DLQ%billing"
