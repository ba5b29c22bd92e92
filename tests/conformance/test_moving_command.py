"""`halfmq cells`: moves topics in a process of its own, which may be killed."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import pytest

from broker.domain.group import GroupSettings
from broker.domain.topic import TopicSettings
from broker.ports.epochs import Epoch
from conformance.moving import B, Installation, found_in, made_in, the_topic
from conformance.world import HOUR, log_of, new_id, ok, sending
from halfmq_cli.serving import REFUSED
from support.command import killed_when_it_tells, run
from support.databases import KINDS

if TYPE_CHECKING:
    from subprocess import CompletedProcess

# What depends on the server is in the other tests of moves.
pytestmark = pytest.mark.parametrize("server", KINDS if os.environ.get("HALFMQ_MOVE_ALL") else KINDS[1:])

MANY = 3000
ORDERS = ("cells", "move", "--to", "b", "--topic", "orders")


def variables(cells: Installation) -> dict[str, str]:
    home, b, c = cells.worlds
    return {
        "HALFMQ_DATABASE": home.url,
        "HALFMQ_CELLS": f"b={b.url} c={c.url}",
        "HALFMQ_TABLE_PREFIX": home.table_prefix,
    }


def halfmq(cells: Installation, *arguments: str) -> CompletedProcess[str]:
    done = run(*arguments, variables=variables(cells))
    assert "halfmq:halfmq@" not in done.stdout + done.stderr  # no password on a screen
    return done


async def test_a_topic_is_moved_with_what_reads_it(cells: Installation) -> None:
    store, orders, _ = await made_in(cells, 0)
    ok(await store.send([sending(orders, "one")]))
    await store.commit_epoch(Epoch("archive", "query", 0), {})
    await store.create_group("idle", GroupSettings(3), TopicSettings(1, HOUR))
    refused = halfmq(cells, *ORDERS)
    assert (refused.returncode, "group 'billing'" in refused.stderr, "--with-others" in refused.stderr) == (
        REFUSED,
        True,
        True,
    )
    looked_at = halfmq(cells, *ORDERS, "--with-others", "--dry-run")
    assert looked_at.returncode == 0, looked_at.stderr
    assert "from home to b: topic 'orders', group 'billing'; 1 messages with 3 bytes are copied" in looked_at.stdout
    assert "; sinks of this cell that stay: sink 'archive'; name those that write these topics" in looked_at.stdout
    assert "; groups of this cell that have read nothing yet, and stay: group 'idle'; name those" in looked_at.stdout
    assert await found_in(cells) == [0]
    moved = halfmq(cells, *ORDERS, "--with-others")
    assert moved.returncode == 0, moved.stderr
    assert "moved to b: topic 'orders', group 'billing'; they stood still for " in moved.stdout
    assert await found_in(cells) == [B]
    listed = halfmq(cells, "cells").stdout.splitlines()
    assert listed[:2] == [
        "home (cell 0): 0 topics, 0 groups, 0 sinks; and all that is placed nowhere else",
        "b (cell 1): 1 topics, 1 groups, 0 sinks",
    ]
    assert re.fullmatch(r"move \d+ from home to b, by os:\w+, moved: topic 'orders', group 'billing'", listed[3])


async def test_a_command_that_is_killed_is_gone_on_with(cells: Installation) -> None:
    store, orders, _ = await made_in(cells, 0)
    for start in range(0, MANY, 1000):
        ok(await store.send([sending(orders, f"{start + n}") for n in range(1000)]))
    before = await log_of(store, orders)
    killed_when_it_tells("copied", *ORDERS, "--with-others", variables=variables(cells))
    assert await found_in(cells) == [0]
    assert "not ended" in halfmq(cells, "cells").stdout
    killed_when_it_tells("sealed", "cells", "move", "--resume", variables=variables(cells))
    again = halfmq(cells, "cells", "move", "--resume")
    assert again.returncode == 0, again.stderr
    assert await found_in(cells) == [B]
    assert await log_of(cells.store(B), await the_topic(cells, B)) == before
    assert "All moves have ended" in halfmq(cells, "cells", "move", "--resume").stderr


async def test_a_command_that_is_killed_when_all_is_sealed_is_taken_back(cells: Installation) -> None:
    store, orders, _ = await made_in(cells, 0)
    ok(await store.send([sending(orders, "one")]))
    killed_when_it_tells("sealed", *ORDERS, "--with-others", variables=variables(cells))
    assert await found_in(cells) in ([], [B])
    taken_back = halfmq(cells, "cells", "move", "--give-up")
    if taken_back.returncode == 0:
        assert await found_in(cells) == [0]
        ok(await store.send([sending(orders, "two")]))
        return
    assert "is decided" in taken_back.stderr
    assert halfmq(cells, "cells", "move", "--resume").returncode == 0
    assert await found_in(cells) == [B]


async def test_a_move_that_fails_after_its_seal_is_taken_back_and_that_is_told(cells: Installation) -> None:
    store, orders, _ = await made_in(cells, 0)
    others = await cells.store(B).create_topic("others", TopicSettings(1, HOUR))
    # The same message for the same time in both cells: their rows have the same key.
    own, due = new_id(), cells.worlds[0].clock.now() + HOUR
    ok(await store.send([sending(orders, "a", message_id=own, deliver_at=due)]))
    ok(await cells.store(B).send([sending(others, "b", message_id=own, deliver_at=due)]))
    failed = halfmq(cells, *ORDERS, "--with-others")
    assert failed.returncode == REFUSED, failed.stderr
    assert "was taken back: all is where it was before." in failed.stderr.splitlines()[-1]
    assert await found_in(cells) == [0]
    assert "given up" in halfmq(cells, "cells").stdout


def test_what_is_missing_is_told(cells: Installation) -> None:
    for arguments, told in (
        (("cells", "move", "--to", "b"), "to: Name a cell with --to"),
        (("cells", "move", "--to", "d", "--topic", "x"), "to: There is no cell 'd'; there are home, b, c."),
        (("cells", "--to", "b"), "--resume and --give-up are for one that has not ended"),
    ):
        done = halfmq(cells, *arguments)
        assert (done.returncode, told in done.stderr) == (REFUSED, True), done.stderr
    swapped = variables(cells) | {"HALFMQ_CELLS": f"b={cells.worlds[2].url} c={cells.worlds[1].url}"}
    done = run("cells", "move", "--to", "b", "--topic", "x", variables=swapped)
    assert done.returncode == REFUSED
