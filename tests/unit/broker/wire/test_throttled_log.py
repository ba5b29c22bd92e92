"""Lines of the log that clients cause are few, however many requests there are."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from broker.wire.throttled_log import ThrottledLog

if TYPE_CHECKING:
    import pytest


def test_each_kind_has_one_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    seldom = ThrottledLog(logging.getLogger("test.seldom"), lambda: now)
    with caplog.at_level(logging.INFO, "test.seldom"):
        for number in range(1000):
            now = number / 10  # 100 s in all
            seldom.info("request %d is bad", number)
            seldom.info("client %d is gone", number)
    assert [record.getMessage() for record in caplog.records] == [
        "request 0 is bad",
        "client 0 is gone",
        "request 600 is bad (and 599 times since the last such line)",
        "client 600 is gone (and 599 times since the last such line)",
    ]
