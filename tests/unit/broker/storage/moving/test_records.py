"""Op records of a topic that comes back: places go from scheduled to the log, or to recalled, and never back."""

from __future__ import annotations

import pytest

from broker.domain.place import InLog, Recalled, Scheduled
from broker.storage.moving.records import is_scheduled, later
from broker.storage.tables.rows import encode_released

WAITS, LOGGED, TAKEN_BACK = Scheduled(9, 1), InLog(7, 3), Recalled(5, 1, 9)


@pytest.mark.parametrize("final", [LOGGED, TAKEN_BACK])
def test_the_place_that_went_further_is_kept_whichever_record_has_it(final: InLog | Recalled) -> None:
    assert later((WAITS, LOGGED), (final, LOGGED)) == (final, LOGGED)
    assert later((final, LOGGED), (WAITS, LOGGED)) == (final, LOGGED)
    assert later((WAITS, final), (final, WAITS)) == (final, final)


def test_a_record_without_places_learns_them() -> None:
    assert later((), (LOGGED,)) == (LOGGED,)


def test_what_may_still_change_is_what_is_scheduled() -> None:
    assert is_scheduled(encode_released([LOGGED, WAITS]))
    assert not is_scheduled(encode_released([LOGGED, TAKEN_BACK]))
    assert not is_scheduled(None)
