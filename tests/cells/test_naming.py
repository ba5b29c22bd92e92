"""What is created by being named, and what is left of a name that is refused."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from cells.client import CellClient
from cells.test_lost_cell import soon
from cells.test_routing import bodies, count
from faults.client import message
from support.brokers import BrokerProcess
from support.databases import create_database, drop_database, server_url

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.databases import Kind


@pytest.fixture
def databases(kind: Kind) -> Iterator[list[str]]:
    made = [create_database(server_url(kind)) for _ in range(2)]
    yield made
    for url in made:
        drop_database(url)


def test_a_topic_is_not_created_by_a_broker_that_looks_for_it_where_it_was(databases: list[str]) -> None:
    """It would be in no list: what is sent to it would be acknowledged, and read by nobody."""
    home, other = databases
    cells = {"HALFMQ_CELLS": f"b={other}"}
    with ExitStack() as stack:
        one, two = (
            stack.enter_context(CellClient(broker.endpoint))
            for broker in [stack.enter_context(BrokerProcess(home, cells, auto_create=True)) for _ in range(2)]
        )
        far = one.topic_in("b")
        two.send(message(far, "1"))
        one.delete_topic(far)
        soon(lambda: two.send(message(far, "2")))
        assert bodies(one, far) == [b"2"]
        assert count(other, "topic", f"name = '{far}'") == 0
