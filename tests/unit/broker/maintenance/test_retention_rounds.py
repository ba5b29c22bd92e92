"""A round of retention goes on behind what fails; a round of checks as well."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from broker.domain.check_policy import CheckPolicy
from broker.errors import RowsLocked, StorageRejected, StorageUnavailable
from broker.maintenance import transaction_checker
from broker.maintenance.lease_watcher import LeaseWatcher
from broker.maintenance.retention import RetentionSweeper
from broker.maintenance.transaction_checker import TransactionChecker
from broker.ports.upkeep import ToTrim
from broker.services.producing.check_sessions import CheckSessions
from support.turns import own_turn

FAILURES = [RowsLocked("held"), StorageRejected("refused"), RuntimeError("a damaged row")]


def _topic(name: str) -> Any:
    return SimpleNamespace(topic_id=name, name=name, queue_ids=(f"{name}0", f"{name}1"), retention_bytes=1)


class FakeStore:
    """Every piece of work can be told to fail; what was begun is noted."""

    def __init__(self, failing: dict[object, Exception]) -> None:
        self.failing = failing
        self.done: list[object] = []

    def _do(self, what: object) -> int:
        self.done.append(what)
        if what in self.failing:
            raise self.failing[what]
        return 0

    async def list_topics(self, after: str, limit: int) -> list[Any]:
        return [_topic(name) for name in ("a", "b", "c") if name > after]

    async def to_trim(self, after: int, limit: int) -> ToTrim:
        self._do("heads")
        names = "abc"[after : after + 2]
        topics = [_topic(name) for name in names]
        queues = {each for topic in topics for each in topic.queue_ids}
        return ToTrim(topics, queues, {topic.topic_id for topic in topics}, after + 2 if after + 2 < 3 else None)

    async def trim_queue(self, topic: Any, queue_id: object) -> int:
        return self._do(queue_id)

    async def trim_topic(self, topic: Any) -> int:
        return self._do(topic.name)

    async def orphaned_dead_letters(self, after: int, limit: int) -> list[int]:
        return [number for number in (11, 12) if number > after]

    async def delete_orphaned(self, topic_id: int) -> None:
        self._do(topic_id)

    async def deleted_topics(self, after: int, limit: int) -> list[int]:
        return [number for number in (1, 2, 3) if number > after]

    async def sweep_deleted_topic(self, topic_id: int) -> bool:
        return bool(self._do(topic_id))

    async def trim_dedup_keys(self) -> int:
        return self._do("dedup keys")

    async def trim_ops(self, kept: int) -> int:
        return self._do("ops")

    async def drop_sink_leftovers(self, kept: int) -> int:
        return self._do("leftovers")

    async def trim_events(self, kept: int) -> int:
        return self._do("events")

    async def trim_refused_submissions(self, kept: int) -> int:
        return self._do("refused")

    async def trim_audit(self, kept: int) -> int:
        return self._do("audit")

    async def forget_silent_brokers(self, silent: int) -> int:
        return self._do("brokers")

    async def forget_members(self, unseen: int, limit: int) -> int:
        return self._do("members")


TOPICS = ["a0", "a1", "a", "b0", "b1", "b", "c0", "c1", "c"]
OTHERS = [11, 12, 1, 2, 3]
OTHERS += ["ops", "dedup keys", "events", "leftovers", "refused", "audit", "brokers", "members"]


EVERYTHING = ["heads", *TOPICS[:6], "heads", *TOPICS[6:], *OTHERS]


@pytest.mark.parametrize("failure", FAILURES, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("failing", [["a0"], ["a"], [1], ["ops"], ["leftovers"], [*TOPICS, *OTHERS]], ids=str)
async def test_what_fails_starves_nothing(
    failing: list[object], failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    store = FakeStore(dict.fromkeys(failing, failure))
    await RetentionSweeper(store, own_turn(), keep_ops=1, keep_events=1, keep_leftovers=1).run_once()
    assert store.done == EVERYTHING
    assert len(caplog.records) == len(failing)


@pytest.mark.parametrize("failure", FAILURES, ids=lambda error: type(error).__name__)
async def test_where_it_cannot_be_told_what_has_expired_each_queue_is_looked_at(failure: Exception) -> None:
    store = FakeStore({"heads": failure})
    await RetentionSweeper(store, own_turn(), keep_ops=1, keep_events=1, keep_leftovers=1).run_once()
    assert store.done == ["heads", *TOPICS, *OTHERS]


async def test_a_round_ends_when_the_database_is_away(caplog: pytest.LogCaptureFixture) -> None:
    store = FakeStore({"a0": StorageUnavailable("away")})
    with pytest.raises(StorageUnavailable):
        await RetentionSweeper(store, own_turn(), keep_ops=1, keep_events=1, keep_leftovers=1).run_once()
    assert store.done == ["heads", "a0"]
    assert not caplog.records


class CheckStore:
    """Parking fails, and so do the checks of one group."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []
        self.swept: list[bytes] = []
        self.parts: list[bytes] = []

    async def park_exhausted(self, limit: int) -> list[tuple[bytes, str]]:
        raise RuntimeError("a damaged row")

    async def claim_checks(self, group_ids: list[int], *_: object) -> list[Any]:
        self.asked.append(list(group_ids))
        if 1 in group_ids:
            raise RuntimeError("a damaged row")
        return []

    async def sweep_decided_halves(self, after: bytes = b"") -> tuple[int, bytes]:
        self.swept.append(after)
        return 0, self.parts.pop(0) if self.parts else b""


async def test_a_group_whose_checks_fail_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    store, sessions = CheckStore(), CheckSessions()
    monkeypatch.setattr(sessions, "group_ids", lambda: [1, 2, 3])
    clock = SimpleNamespace(now=lambda: 0)
    await TransactionChecker(store, sessions, CheckPolicy(), clock).run_once()  # type: ignore[arg-type]
    assert store.asked == [[1, 2, 3], [1], [2], [3]]
    assert store.swept == [b""]


async def test_a_sweep_of_many_half_messages_goes_on_in_later_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    store, sessions = CheckStore(), CheckSessions()
    store.parts = [b"a", b"b"]
    moment = 100.0
    monkeypatch.setattr(transaction_checker.time, "monotonic", lambda: moment)
    checker = TransactionChecker(store, sessions, CheckPolicy(), SimpleNamespace(now=lambda: 0))  # type: ignore[arg-type]
    for seconds in (0.0, 0.5, 0.5, 1.0, 1.0):
        moment += seconds
        await checker.run_once()
    assert store.swept == [b"", b"a", b"b"]
    moment += transaction_checker.WARN_EVERY
    await checker.run_once()
    assert store.swept == [b"", b"a", b"b", b""]


async def test_a_group_that_cannot_be_looked_at_holds_up_no_other() -> None:
    asked: list[list[int]] = []

    async def look_at_groups(groups: dict[int, Any]) -> dict[int, Any]:
        asked.append(list(groups))
        if 1 in groups:
            raise RuntimeError("a damaged row")
        return {}

    wakeups: Any = SimpleNamespace(waiting_groups={1: {7}, 2: {8}}, told=lambda news: None)
    await LeaseWatcher(SimpleNamespace(look_at_groups=look_at_groups), wakeups).run_once()  # type: ignore[arg-type]
    assert asked == [[1, 2], [1], [2]]
