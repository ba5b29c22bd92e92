"""Databases and brokers that the fault tests of one process share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from faults.sites import Site
from faults.slices import left_out
from support.databases import KINDS, Kind
from support.slices import one_server_each

if TYPE_CHECKING:
    from collections.abc import Iterator


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what is not in the slice that is wanted: kills of further operations, and the other server."""
    unwanted = [each for each in items if left_out(getattr(getattr(each, "callspec", None), "params", {}))]
    if unwanted:
        config.hook.pytest_deselected(items=unwanted)
        items[:] = [each for each in items if each not in unwanted]
    if not os.environ.get("HALFMQ_FAULT_ALL"):
        one_server_each(config, items, Path(__file__).parent)


@pytest.fixture(params=KINDS, scope="module")
def kind(request: pytest.FixtureRequest) -> Kind:
    """Which database server the test runs on."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def site(kind: Kind) -> Iterator[Site]:
    """A database, and a broker on it that nothing is done to."""
    made = Site(kind)
    yield made
    made.close()
    assert made.broker.process.returncode == 0, made.broker.log
    assert made.broker.count("[error") == 0, made.broker.log
