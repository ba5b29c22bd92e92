"""Two brokers on a home database and one more cell, on each server."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from cells.client import CellClient
from support.brokers import BrokerProcess
from support.databases import KINDS, create_database, drop_database, server_url
from support.slices import one_server_each

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.databases import Kind

SETTINGS = {"first_check": 0.3, "check_interval": 0.3, "auto_create_groups": True, "lease": 2}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out of two tests that differ in their server alone one; which one is the same in every process."""
    if not os.environ.get("HALFMQ_CELLS_EVERYWHERE"):
        one_server_each(config, items, Path(__file__).parent)


class Cells(NamedTuple):
    """Two brokers, and the databases of the cells."""

    one: BrokerProcess
    two: BrokerProcess
    home: str
    other: str


@pytest.fixture(params=KINDS, scope="module")
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def cells(kind: Kind) -> Iterator[Cells]:
    home, other = (create_database(server_url(kind)) for _ in range(2))
    variables = {"HALFMQ_CELLS": f"b={other}"}
    with (
        BrokerProcess(home, variables, broker_id="one", **SETTINGS) as one,
        BrokerProcess(home, variables, broker_id="two", **SETTINGS) as two,
    ):
        yield Cells(one, two, home, other)
        for broker in (one, two):
            assert broker.count("[error") == 0, broker.log
    drop_database(home)
    drop_database(other)


@pytest.fixture
def client(cells: Cells) -> Iterator[CellClient]:
    with CellClient(cells.one.endpoint) as own:
        yield own


@pytest.fixture
def another(cells: Cells) -> Iterator[CellClient]:
    """A client of the other broker."""
    with CellClient(cells.two.endpoint) as own:
        yield own
