"""A move between cells takes all leases along, also those that claims make while the seal waits for them."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from broker.domain.cell import HOME_NUMBER
from broker.storage.delivery import redelivery
from conformance.moving import B, Installation, group, made_in, the_topic, topic
from conformance.world import LEASE, acks, bodies, ok, pull, sending

if TYPE_CHECKING:
    from concurrent.futures import Future

    from broker.storage.moving.mover import Ended


@pytest.mark.parametrize("message_group", ["a", None], ids=["message group", "none"])
async def test_the_rest_of_a_lease_that_is_split_meanwhile_moves_too(
    cells: Installation, message_group: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, orders, billing = await made_in(cells, HOME_NUMBER)
    ok(await store.send([sending(orders, f"m{n}", message_group=message_group) for n in range(6)]))
    assert len(bodies(await pull(store, billing, orders))) == 6
    cells.worlds[HOME_NUMBER].clock.pass_time(LEASE)
    mover, move = cells.begin(B, topic(), group())
    original, moving = redelivery._leave_rest, list["Future[Ended]"]()
    with ThreadPoolExecutor(1) as threads:

        def leave_rest(*arguments: object) -> object:
            left = original(*arguments)  # type: ignore[arg-type]
            moving.append(threads.submit(mover.carry_on, move))
            # The seal waits for the lease that is being split.
            with pytest.raises(TimeoutError):
                moving[0].result(0.7)
            return left

        with monkeypatch.context() as patch:
            patch.setattr(redelivery, "_leave_rest", leave_rest)
            held = await pull(store, billing, orders, limit=2)
        assert bodies(held) == ["m0", "m1"]
        assert (await asyncio.to_thread(moving[0].result, 60)).moved
    there, billing = cells.store(B), await cells.store(B).find_group("billing") or billing
    ok(await there.settle(acks(held)))
    rest = await pull(there, billing, await the_topic(cells, B))
    assert bodies(rest) == ["m2", "m3", "m4", "m5"]
    ok(await there.settle(acks(rest)))
    assert cells.count(HOME_NUMBER, "lease") == cells.count(B, "lease") == 0
