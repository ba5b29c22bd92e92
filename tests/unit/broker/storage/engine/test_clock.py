"""The database's time while the database stands still around the moment when it is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import pytest

from broker.storage.engine import clock as clock_module
from broker.storage.engine.clock import SECOND, DatabaseClock

if TYPE_CHECKING:
    from broker.storage.engine.session import Session

START = 1_800_000_000 * SECOND
STALL = 20 * SECOND


@dataclass
class Server:
    """A server whose clock is right, seen over a connection that stands still before and after it is read."""

    passed: int = 0
    error: int = 0
    before: int = 0
    after: int = 0

    @property
    def time(self) -> int:
        return START + self.passed + self.error

    @property
    def dialect(self) -> Server:
        return self

    def now(self, session: object) -> int:
        self.passed += self.before
        reading = self.time
        self.passed += self.after
        return reading


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    server = Server()
    monkeypatch.setattr(clock_module, "_elapsed", lambda: server.passed)
    return server


def synchronise(clock: DatabaseClock, server: Server) -> None:
    clock.synchronise(cast("Session", server))


@pytest.mark.parametrize(
    ("before", "after"),
    [(STALL, 0), (0, STALL), (STALL // 2, STALL // 2), (SECOND // 20, 0), (0, SECOND // 20)],
)
def test_a_stall_does_not_move_the_clock(server: Server, before: int, after: int) -> None:
    """Half of it was taken for the way, and time was 10 s ahead: leases ended early."""
    clock = DatabaseClock()
    synchronise(clock, server)
    server.before, server.after = before, after
    for _ in range(3):
        synchronise(clock, server)
        assert clock.now() == server.time


@pytest.mark.parametrize("trip", [200, 3_000, 10_000, 40_000])
def test_a_network_takes_its_time(server: Server, trip: int) -> None:
    """The same way there and back: no error is left, whatever this machine's own clock was like at first."""
    clock = DatabaseClock()
    server.error, server.before, server.after = 20_000, trip // 2, trip // 2
    for _ in range(3):
        synchronise(clock, server)
    assert abs(clock.now() - server.time) <= 1
    # This machine was busy for a moment.
    server.after = 15 * trip
    synchronise(clock, server)
    server.passed += SECOND
    assert abs(clock.now() - server.time) <= 1
    # From now on it takes longer.
    server.before = server.after = trip
    server.error = 0
    for _ in range(20):
        synchronise(clock, server)
    server.passed += SECOND
    assert abs(clock.now() - server.time) <= 1


def test_a_slow_reading_tells_what_a_clock_cannot_be(server: Server) -> None:
    clock = DatabaseClock()
    synchronise(clock, server)
    server.error, server.before = 60 * SECOND, 2 * SECOND
    synchronise(clock, server)
    assert 0 <= server.time - clock.now() <= 2 * SECOND


def test_the_first_reading_may_be_slow(server: Server) -> None:
    server.after = STALL
    clock = DatabaseClock()
    synchronise(clock, server)
    assert abs(server.time - clock.now()) <= STALL
    server.after = 0
    synchronise(clock, server)
    server.passed += STALL
    assert clock.now() == server.time


def test_small_errors_are_put_right_in_silence(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    clock = DatabaseClock()
    synchronise(clock, server)
    for error in (SECOND // 2, 0, SECOND):
        server.error = error
        synchronise(clock, server)
        server.passed += SECOND
        assert clock.now() == server.time
    assert not caplog.records


@pytest.mark.parametrize("ahead", [0, 3 * SECOND, -3 * SECOND])
def test_it_tells_how_far_the_database_is_ahead_of_this_machine(
    server: Server, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    server.passed = 7 * SECOND
    monkeypatch.setattr(clock_module.time, "time_ns", lambda: (server.time - ahead) * 1000)
    clock = DatabaseClock()
    assert clock.ahead == 0
    synchronise(clock, server)
    assert clock.ahead == ahead
    # Both go on.
    server.passed += 100 * SECOND
    assert clock.ahead == ahead
