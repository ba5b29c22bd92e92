"""Brokers and clients over all brokers: pages, and who may see whom."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from broker.errors import InvalidArgument, StorageUnavailable
from broker.ports.connections import ALIVE, BrokerHealth, BrokerStatus, ClientKind, ConnectedClient
from broker.ports.sampling import DeadLetters, Overview, PendingOfGroup
from broker.services.operating import cluster as module
from broker.services.operating.cluster import ClientSearch, ClusterOperations
from broker.services.operating.health import FailureTally, OwnHealth
from unit.broker.services.fakes import FakeClock

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

NOW = 100_000_000
KEEP = 30_000_000


def consumer(name: str, *groups: str, since: int = 5) -> ConnectedClient:
    return ConnectedClient(ClientKind.CONSUMER, name, "10.0.0.1:1", "", "", groups, ("t",), since, held=99)


def producer(name: str, *groups: str, since: int = 5) -> ConnectedClient:
    return ConnectedClient(ClientKind.PRODUCER, name, "10.0.0.1:1", "", "", groups, (), since, held=2)


class Reports:
    """What brokers reported."""

    def __init__(self, **clients: list[ConnectedClient]) -> None:
        self.clients = clients
        self.seen = dict.fromkeys(clients, NOW)
        self.held: dict[tuple[str, str], int] = {}

    async def brokers(self) -> list[BrokerStatus]:
        return [BrokerStatus(name, "h", 1, "e", "v", 0, self.seen[name]) for name in sorted(self.clients)]

    async def clients_of(self, broker_id: str) -> list[ConnectedClient]:
        return self.clients[broker_id]

    async def held_by(self, consumers: Collection[tuple[str, str]]) -> dict[tuple[str, str], int]:
        return {place: count for place, count in self.held.items() if place in consumers}

    async def report_broker(self, status: BrokerStatus, clients: Sequence[ConnectedClient] | None) -> bool:
        raise AssertionError

    async def forget_broker(self, status: BrokerStatus) -> None:
        raise AssertionError


LETTERS = [DeadLetters("theirs", 9, 8), DeadLetters("mine", 7, 7), DeadLetters("mine-too", 1, 1)]


class Counts:
    """Counts how often it counts; waits for `slow`."""

    def __init__(self, oldest_op: int | None = None) -> None:
        self.times = 0
        self.slow = asyncio.Event()
        self.slow.set()
        self.oldest_op = oldest_op

    async def overview(self) -> Overview:
        self.times += 1
        await asyncio.sleep(0)
        await self.slow.wait()
        pending = [PendingOfGroup("mine", 1), PendingOfGroup("theirs", 2)]
        found = Overview(NOW, "db", "1", pending, [], 0, 0, 0, self.times, 0, 0, 16)
        return replace(found, dead_letters_by_group=LETTERS, dead_letter_groups=len(LETTERS), oldest_op=self.oldest_op)


def operations_of(counts: Counts, reports: Reports | None = None) -> ClusterOperations:
    health = OwnHealth("me", FailureTally(), lambda: True, lambda: -5)
    return ClusterOperations(reports or Reports(), counts, FakeClock(NOW), health, keep_ops=KEEP)


def cluster(reports: Reports) -> ClusterOperations:
    return operations_of(Counts(), reports)


async def told(operations: ClusterOperations, **arguments: Any) -> Overview:
    found = await operations.overview(**arguments)
    assert found is not None
    return found


async def names(reports: Reports, search: ClientSearch | None = None, may: Any = None) -> list[str]:
    found, _ = await cluster(reports).clients(search or ClientSearch(), 100, "", may)
    return [client.client_id for _, client in found]


async def test_clients_of_all_brokers_in_the_order_of_their_arrival() -> None:
    reports = Reports(b=[consumer("x", "g")], a=[consumer("z", "g", since=7), consumer("y", "g", since=6)])
    assert await names(reports) == ["y", "z", "x"]


async def test_a_broker_that_is_silent_is_listed_without_its_clients() -> None:
    reports = Reports(a=[consumer("x", "g")], b=[consumer("y", "g")])
    reports.seen["a"] = NOW - ALIVE - 1
    assert [(status.broker_id, alive) for status, alive in await cluster(reports).brokers()] == [
        ("a", False),
        ("b", True),
    ]
    assert await names(reports) == ["y"]


@pytest.mark.parametrize(
    ("search", "expected"),
    [
        (ClientSearch(kind=ClientKind.PRODUCER), ["p"]),
        (ClientSearch(group="h"), ["y"]),
        (ClientSearch(broker_id="b"), ["p"]),
        (ClientSearch(kind=ClientKind.CONSUMER, group="shop"), []),
    ],
)
async def test_only_those_that_are_wanted(search: ClientSearch, expected: list[str]) -> None:
    reports = Reports(a=[consumer("x", "g"), consumer("y", "g", "h", since=6)], b=[producer("p", "shop")])
    assert await names(reports, search) == expected


async def test_only_groups_that_may_be_seen_are_told() -> None:
    reports = Reports(a=[consumer("x", "mine", "theirs"), consumer("y", "theirs", since=6), consumer("z", since=7)])
    found, _ = await cluster(reports).clients(ClientSearch(), 100, "", lambda group: group == "mine")  # type: ignore[arg-type]
    assert [(client.client_id, client.groups) for _, client in found] == [("x", ("mine",))]


async def test_what_is_held_comes_from_the_leases_of_consumers_and_the_open_checks_of_producers() -> None:
    reports = Reports(a=[consumer("x", "g"), consumer("y", "g", since=6), producer("p", "shop", since=7)])
    reports.held = {("g", "x"): 4}
    found, _ = await cluster(reports).clients(ClientSearch(), 100, "")
    assert [(client.client_id, client.held) for _, client in found] == [("x", 4), ("y", 0), ("p", 2)]


@pytest.mark.parametrize("size", [1, 2, 3, 7])
async def test_pages_follow_one_another(size: int) -> None:
    together = [consumer(f"x{number}", "g") for number in range(4)]
    reports = Reports(a=together, b=[replace(each, client_id=f"{each.client_id}b") for each in together])
    seen, token = list[str](), ""
    while True:
        found, token = await cluster(reports).clients(ClientSearch(), size, token)
        seen += [client.client_id for _, client in found]
        if not token:
            break
    assert seen == ["x0", "x1", "x2", "x3", "x0b", "x1b", "x2b", "x3b"]


@pytest.mark.parametrize("token", ["x", "[]", '["a",1]', '["a","b","c"]', "[" * 2000, '["a",1,"b",2]', "{}", "null"])
async def test_what_is_no_page_token(token: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        await cluster(Reports(a=[])).clients(ClientSearch(), 10, token)
    assert refused.value.field == "page_token"


async def test_what_there_is_is_counted_once_for_all_who_ask_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = Counts()
    operations = operations_of(counts)
    asked = await asyncio.gather(*[told(operations) for _ in range(5)])
    assert {each.released for each in asked} == {1}
    assert (await told(operations)).released == 1
    monkeypatch.setattr(module, "COUNT_EVERY", 0.0)
    assert (await told(operations)).released == 2


async def test_only_groups_that_may_be_seen_are_counted_by_name() -> None:
    operations = operations_of(Counts())
    found = await told(operations, may=lambda group: group.startswith("mine"))
    assert [each.producer_group for each in found.pending] == ["mine"]
    assert [each.consumer_group for each in found.dead_letters_by_group] == ["mine", "mine-too"]
    assert (found.dead_letter_groups, found.dead_letters) == (2, 16)


async def test_of_many_groups_with_dead_letters_those_with_most_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_GROUPS", 2)
    found = await told(operations_of(Counts()))
    assert list(found.dead_letters_by_group) == LETTERS[:2]
    assert (found.dead_letter_groups, found.dead_letters) == (3, 16)


async def test_whoever_does_not_wait_gets_the_last_figures_with_their_age(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COUNT_EVERY", 0.0)
    monkeypatch.setattr(module, "OLD", 0.0)
    counts = Counts()
    operations = operations_of(counts)
    assert (await told(operations)).age == 0
    counts.slow.clear()
    found = await told(operations, wait=1_000)
    assert found.released == 1
    assert found.age > 0
    counts.slow.set()
    # The count goes on, and is there for the next one.
    assert (await told(operations)).released == 2
    assert counts.times == 2


async def test_whoever_does_not_wait_for_the_first_count_gets_nothing() -> None:
    counts = Counts()
    counts.slow.clear()
    operations = operations_of(counts)
    assert await operations.overview(wait=0) is None
    counts.slow.set()
    assert (await told(operations, wait=60_000_000)).released == 1
    assert counts.times == 1


@pytest.mark.parametrize(("oldest", "behind"), [(None, 0), (NOW - KEEP + 1, 0), (NOW - KEEP - 7, 7)])
async def test_retention_is_behind_by_what_the_oldest_record_is_past_its_time(oldest: int | None, behind: int) -> None:
    assert (await told(operations_of(Counts(oldest)))).retention_behind == behind


def test_a_broker_knows_its_own_health_alone() -> None:
    failures = FailureTally()
    failures.round_ended("retention", 0.1, None)
    failures.round_ended("retention", 0.1, ValueError("x"))
    failures.piece_failed("retention")
    failures.round_ended("clock", 0.1, ValueError("x"))
    failures.database_failed("lost")
    health = OwnHealth("me", failures, lambda: False, lambda: -5)
    assert health.of("me") == BrokerHealth(False, {"clock": 1, "retention": 2}, {"lost": 1}, -5)
    assert health.of("you") is None


async def test_where_counting_takes_long_the_last_figures_are_told_while_it_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts = Counts()
    operations = operations_of(counts)
    await operations.overview()
    monkeypatch.setattr(module, "COUNT_EVERY", 0.0)
    monkeypatch.setattr(module, "SLOW", -1.0)
    assert (await told(operations)).released == 1
    for _ in range(5):
        await asyncio.sleep(0)
    assert (await told(operations)).released == 2
    monkeypatch.setattr(module, "OLD", 0.0)
    assert (await told(operations)).released >= 3


async def test_a_count_that_failed_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(Counts):
        async def overview(self) -> Overview:
            if not self.times:
                self.times += 1
                raise StorageUnavailable("away")
            return await super().overview()

    operations = operations_of(Failing())
    monkeypatch.setattr(module, "COUNT_EVERY", 0.0)
    with pytest.raises(StorageUnavailable):
        await operations.overview()
    assert (await told(operations)).released == 2
