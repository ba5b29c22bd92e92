"""Who is connected to this broker, and what it reports of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from broker.errors import StorageUnavailable
from broker.ports.connections import BrokerStatus, ClientKind, ConnectedClient
from broker.services import connections as module
from broker.services.connections import BrokerReports, Connected, Connections, Figures
from unit.broker.services.fakes import FakeClock

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


def client(name: str, kind: ClientKind | None = ClientKind.CONSUMER) -> Connected:
    return Connected(kind, name, "10.0.0.1:1", "lib/1", "ann", ["g"], ["t"])


class Store:
    """Takes reports, or is away."""

    def __init__(self) -> None:
        self.away = self.has_clients = False
        self.reports: list[tuple[BrokerStatus, Sequence[ConnectedClient] | None]] = []
        self.gone: list[str] = []

    async def report_broker(self, status: BrokerStatus, clients: Sequence[ConnectedClient] | None) -> bool:
        if self.away:
            raise StorageUnavailable("away")
        self.reports.append((status, clients))
        if clients is not None:
            self.has_clients = True
        return self.has_clients

    async def forget_broker(self, status: BrokerStatus) -> None:
        self.gone.append(status.broker_id)

    async def brokers(self) -> list[BrokerStatus]:
        raise AssertionError

    async def clients_of(self, broker_id: str) -> list[ConnectedClient]:
        raise AssertionError

    async def held_by(self, consumers: Collection[tuple[str, str]]) -> dict[tuple[str, str], int]:
        raise AssertionError


def test_a_client_is_listed_as_long_as_its_stream_is_open() -> None:
    clock = FakeClock()
    here = Connections(clock)
    with here.open(client("x")):
        clock.time += 5
        with pytest.raises(RuntimeError), here.open(client("y")):
            assert [(each.client_id, each.connected_at) for each in here.snapshot()] == [
                ("x", 1_000_000),
                ("y", 1_000_005),
            ]
            raise RuntimeError
        assert [each.client_id for each in here.snapshot()] == ["x"]
    assert here.snapshot() == []


def test_its_figures_are_those_of_the_moment() -> None:
    here, reader = Connections(FakeClock()), client("x")
    delivered = [0]
    reader.figures = lambda: Figures(5, None, delivered[0], 1)
    with here.open(reader):
        assert here.snapshot()[0].delivered == 0
        delivered[0] = 3
        found = here.snapshot()[0]
    assert (found.credits, found.byte_credits, found.delivered, found.held) == (5, None, 3, 1)


def test_one_whose_kind_is_not_known_yet_is_not_listed() -> None:
    here, unknown = Connections(FakeClock()), client("x", None)
    with here.open(unknown):
        assert (here.snapshot(), here.counts()[ClientKind.PRODUCER]) == ([], 0)
        unknown.kind = ClientKind.PRODUCER
        assert (len(here.snapshot()), here.counts()[ClientKind.PRODUCER]) == (1, 1)


def test_of_many_the_first_ones_are_listed_and_all_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_REPORTED", 2)
    monkeypatch.setattr(module, "MOST_NAMES", 1)
    here = Connections(FakeClock())
    many = client("x")
    many.groups, many.topics = ["g", "h"], ["t", "u"]
    with here.open(many), here.open(client("y")), here.open(client("z")):
        assert [each.client_id for each in here.snapshot()] == ["x", "y"]
        assert (here.snapshot()[0].groups, here.snapshot()[0].topics) == (("g",), ("t",))
        assert here.counts()[ClientKind.CONSUMER] == 3


async def test_clients_are_reported_where_something_changed() -> None:
    store, here = Store(), Connections(FakeClock())
    reports = BrokerReports(store, here, BrokerStatus("b", "h", 1, "e", "v", 7))
    await reports.report()
    await reports.report()
    with here.open(client("x")):
        await reports.report()
        store.away = True
        with pytest.raises(StorageUnavailable):
            await reports.report()
        store.away = False
        # It is not known what was stored.
        await reports.report()
    assert [None if clients is None else [each.client_id for each in clients] for _, clients in store.reports] == [
        [],
        None,
        ["x"],
        ["x"],
    ]
    assert [status.consumers for status, _ in store.reports] == [0, 0, 1, 1]
    await reports.leave()
    assert store.gone == ["b"]


async def test_one_whose_report_is_gone_reports_its_clients_again() -> None:
    store, here = Store(), Connections(FakeClock())
    reports = BrokerReports(store, here, BrokerStatus("b", "h", 1, "e", "v", 7))
    with here.open(client("x")):
        await reports.report()
        # It stood still for so long that another broker removed it.
        store.has_clients = False
        await reports.report()
    assert [None if clients is None else [each.client_id for each in clients] for _, clients in store.reports] == [
        ["x"],
        None,
        ["x"],
    ]
