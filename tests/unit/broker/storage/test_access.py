"""Work for look-ups that was cancelled while it waited for a thread."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from typing import TYPE_CHECKING

import pytest

from broker.storage.adapters.access import _LookUps

if TYPE_CHECKING:
    from broker.storage.engine.session import Session


class _Body(bytearray):
    """One that tells when it is gone."""


async def test_what_was_cancelled_is_not_held_until_a_thread_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    busy, free = threading.Event(), threading.Event()

    class Runner:
        def transact(self, work: object, **_: object) -> object:
            busy.set()
            return work(None) if callable(work) else None

        def close(self) -> None: ...

    monkeypatch.setattr(_LookUps, "_runner", lambda *_, **__: Runner())
    look_ups = _LookUps(None, 10, threads=1)  # type: ignore[arg-type] - it is never reached
    body = _Body(1000)
    held = weakref.ref(body)

    def use(_: Session | None, body: _Body = body) -> int:
        return len(body)

    first = asyncio.ensure_future(look_ups.run(lambda _: free.wait(30), write=False))
    await asyncio.to_thread(busy.wait, 30)
    second = asyncio.ensure_future(look_ups.run(use, write=False))
    await asyncio.sleep(0)
    del body, use
    gc.collect()
    assert held() is not None
    second.cancel()
    await asyncio.wait([second])
    assert second.cancelled()
    del second
    gc.collect()
    assert held() is None
    free.set()
    assert await first
    await look_ups.close()
