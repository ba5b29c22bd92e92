"""Work that is not left half way, and what breaks it off all the same."""

from __future__ import annotations

import asyncio

import pytest

from client_core import uninterrupted
from client_core.uninterrupted import to_its_end


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uninterrupted, "_GRACE", 0.02)
    monkeypatch.setattr(uninterrupted, "_LAST", 0.02)


async def test_a_cancelled_task_waits_for_its_end() -> None:
    released, ended = asyncio.Event(), []

    async def work() -> None:
        await released.wait()
        ended.append(True)

    task = asyncio.create_task(to_its_end(work()))
    for _ in range(3):
        await asyncio.sleep(0)
        task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    released.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [True]


async def test_its_result_and_its_error_come_through() -> None:
    async def work(error: Exception | None) -> int:
        await asyncio.sleep(0)
        if error is not None:
            raise error
        return 7

    assert await to_its_end(work(None), 60.0) == 7
    with pytest.raises(KeyError):
        await to_its_end(work(KeyError()), 60.0)


async def test_what_waits_fails_by_itself_once_it_is_cut() -> None:
    answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    with pytest.raises(ConnectionError):
        await to_its_end(asyncio.wait_for(answer, None), 0.01, lambda: answer.set_exception(ConnectionError()))


async def test_what_does_not_notice_the_cut_is_cancelled() -> None:
    cuts: list[bool] = []
    with pytest.raises(TimeoutError, match="no answer came"):
        await to_its_end(asyncio.Event().wait(), 0.01, lambda: cuts.append(True))
    assert cuts == [True]


async def test_what_cannot_even_be_cancelled_is_left_alone() -> None:
    released = asyncio.Event()

    async def work() -> None:
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                continue

    with pytest.raises(TimeoutError):
        await to_its_end(work(), 0.01)
    released.set()


async def test_the_seconds_may_count_from_the_cancellation() -> None:
    cuts: list[bool] = []
    task = asyncio.create_task(
        to_its_end(asyncio.Event().wait(), 0.01, lambda: cuts.append(True), from_cancellation=True)
    )
    await asyncio.sleep(0.1)
    assert not task.done()
    assert cuts == []
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cuts == [True]
