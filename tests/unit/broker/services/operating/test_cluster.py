"""Brokers and clients over all brokers: pages, and who may see whom."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from broker.errors import InvalidArgument, StorageUnavailable
from broker.ports.connections import ALIVE, BrokerStatus, ClientKind, ConnectedClient
from broker.ports.sampling import Overview, PendingOfGroup
from broker.services.operating import cluster as module
from broker.services.operating.cluster import ClientSearch, ClusterOperations
from unit.broker.services.fakes import FakeClock

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

NOW = 100_000_000


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


class Counts:
    """Counts how often it counts."""

    def __init__(self) -> None:
        self.times = 0

    async def overview(self) -> Overview:
        self.times += 1
        await asyncio.sleep(0)
        pending = [PendingOfGroup("mine", 1), PendingOfGroup("theirs", 2)]
        return Overview(NOW, "db", "1", pending, [], 0, 0, 0, self.times, 0, 0, 0)


def cluster(reports: Reports) -> ClusterOperations:
    return ClusterOperations(reports, Counts(), FakeClock(NOW))


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
    operations = ClusterOperations(Reports(), counts, FakeClock(NOW))
    asked = await asyncio.gather(*[operations.overview() for _ in range(5)])
    assert {each.released for each in asked} == {1}
    assert (await operations.overview()).released == 1
    monkeypatch.setattr(module, "COUNT_EVERY", 0.0)
    assert (await operations.overview()).released == 2


async def test_only_producer_groups_that_may_be_seen_are_counted_by_name() -> None:
    operations = ClusterOperations(Reports(), Counts(), FakeClock(NOW))
    found = await operations.overview(lambda group: group == "mine")  # type: ignore[arg-type]
    assert [each.producer_group for each in found.pending] == ["mine"]


async def test_where_counting_takes_long_the_last_figures_are_told_while_it_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts = Counts()
    operations = ClusterOperations(Reports(), counts, FakeClock(NOW))
    await operations.overview()
    monkeypatch.setattr(module, "COUNT_EVERY", 0.0)
    monkeypatch.setattr(module, "SLOW", -1.0)
    assert (await operations.overview()).released == 1
    for _ in range(5):
        await asyncio.sleep(0)
    assert (await operations.overview()).released == 2
    monkeypatch.setattr(module, "OLD", 0.0)
    assert (await operations.overview()).released >= 3


async def test_a_count_that_failed_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(Counts):
        async def overview(self) -> Overview:
            if not self.times:
                self.times += 1
                raise StorageUnavailable("away")
            return await super().overview()

    operations = ClusterOperations(Reports(), Failing(), FakeClock(NOW))
    monkeypatch.setattr(module, "COUNT_EVERY", 0.0)
    with pytest.raises(StorageUnavailable):
        await operations.overview()
    assert (await operations.overview()).released == 2
