"""When a message may be delivered, and what a dedup_key may be: bounds at one less, exactly, and one more."""

from __future__ import annotations

import pytest

from broker.domain.limits import LONGEST_DELAY, MAX_DEDUP_KEY_BYTES, Limits
from broker.domain.message import Message
from broker.errors import ConfigurationError, InvalidArgument

NOW = 1_800_000_000_000_000
DAY = 24 * 3600 * 1_000_000
LIMITS = Limits()


def message(**rest: object) -> Message:
    return Message("orders", b"x", **rest)  # type: ignore[arg-type]


@pytest.mark.parametrize("delay", [0, 1, DAY])
def test_a_delay_becomes_a_time(delay: int) -> None:
    wanted = message(delay=delay)
    LIMITS.set_delivery(wanted, NOW)
    assert (wanted.deliver_at, wanted.delay) == (NOW + delay, None)


@pytest.mark.parametrize("deliver_at", [0, NOW - 1, NOW, NOW + DAY])
def test_a_time_stays(deliver_at: int) -> None:
    wanted = message(deliver_at=deliver_at)
    LIMITS.set_delivery(wanted, NOW)
    assert wanted.deliver_at == deliver_at


@pytest.mark.parametrize(("field", "value"), [("delay", DAY + 1), ("deliver_at", NOW + DAY + 1)])
def test_too_far_ahead(field: str, value: int) -> None:
    with pytest.raises(InvalidArgument, match="24 h at most") as refused:
        LIMITS.set_delivery(message(**{field: value}), NOW)
    assert (refused.value.field, refused.value.reason) == (field, "DELAY_TOO_LONG")


def test_the_bound_is_a_setting() -> None:
    Limits(max_delay=LONGEST_DELAY).set_delivery(message(delay=LONGEST_DELAY), NOW)
    Limits(max_delay=0).set_delivery(message(deliver_at=NOW), NOW)
    with pytest.raises(InvalidArgument, match="0\\.5 h at most"):
        Limits(max_delay=DAY // 48).set_delivery(message(delay=DAY), NOW)
    for wrong in (-1, LONGEST_DELAY + 1):
        with pytest.raises(ConfigurationError):
            Limits(max_delay=wrong)


@pytest.mark.parametrize("key", ["x", "x" * MAX_DEDUP_KEY_BYTES, "ü" * 127, "with spaces | and more"])
def test_keys_that_are_fine(key: str) -> None:
    LIMITS.check_message(message(dedup_key=key))


@pytest.mark.parametrize("key", ["", "x" * (MAX_DEDUP_KEY_BYTES + 1), "ü" * 128, "a\nb", "\x7f"])
def test_keys_that_are_not(key: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        LIMITS.check_message(message(dedup_key=key))
    assert refused.value.field == "dedup_key"
