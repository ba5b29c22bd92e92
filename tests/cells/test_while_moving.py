"""Calls for what is moving: while it is sealed they are told to come back, and after the move they are served."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import grpc
import pytest

from cells.client import count, reason
from faults.client import PATIENCE, message, unique
from halfmq.v1 import consumer_pb2
from support.command import killed_when_it_tells, run

if TYPE_CHECKING:
    from collections.abc import Callable

    from cells.client import CellClient
    from cells.conftest import Cells

LONGEST = 30.0
"""Seconds in which what is moved is served again."""


def variables(cells: Cells) -> dict[str, str]:
    return {"HALFMQ_DATABASE": cells.home, "HALFMQ_CELLS": f"b={cells.other}"}


def seal(cells: Cells, to: str, *names: str) -> None:
    """A move that is left when what moves is sealed."""
    killed_when_it_tells("sealed", "cells", "move", "--to", to, *names, variables=variables(cells))


def resume(cells: Cells) -> None:
    done = run("cells", "move", "--resume", variables=variables(cells))
    assert done.returncode == 0, done.stderr


def served(call: Callable[[], object]) -> None:
    """Repeats a call that is told that something has moved, as clients do."""
    until = time.monotonic() + LONGEST
    while True:
        try:
            call()
        except grpc.RpcError as error:
            assert reason(error) == "MOVED", error
            assert time.monotonic() < until, error
            time.sleep(0.2)
        else:
            return


@pytest.mark.parametrize(("begin", "to"), [("", "b"), ("b", "home")])
def test_a_new_group_is_created_where_its_topics_have_moved(
    client: CellClient, cells: Cells, begin: str, to: str
) -> None:
    topic, group = client.topic_in(begin), unique("readers")
    # The broker remembers the topic.
    client.send(message(topic, "one"))
    seal(cells, to, "--topic", topic)
    request = consumer_pb2.PullRequest(consumer_group=group, topics=[topic])
    with pytest.raises(grpc.RpcError) as refused:
        list(client.start_pull(request))
    assert reason(refused.value) == "MOVED"
    resume(cells)
    served(lambda: list(client.start_pull(request)))
    there = [count(url, "consumer_group", f"name = '{group}'") for url in (cells.home, cells.other)]
    assert there == ([0, 1] if to == "b" else [1, 0])


