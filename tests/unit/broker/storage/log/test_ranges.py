"""Messages of rows, some of which take long to unpack."""

from __future__ import annotations

import asyncio

from broker.domain.topic import Compression
from broker.storage.engine import greenlets
from broker.storage.log.ranges import UNPACKED_AT_ONCE, log_messages
from broker.storage.tables.bodies import pack

LARGE = b"a line that is repeated, " * (UNPACKED_AT_ONCE // 50)


def row(offset: int, body: bytes) -> tuple[object, ...]:
    stored = pack(body, Compression.ZSTD)
    return (offset, b"i" * 16, 0, None, None, None, None, 1, 2, len(body) if stored != body else None, stored)


async def test_others_have_a_turn_while_much_is_unpacked() -> None:
    rows = [row(offset, LARGE if offset % 2 else b"small") for offset in range(16)]
    turns = 0

    def take_turn() -> None:
        nonlocal turns
        turns += 1
        asyncio.get_running_loop().call_soon(take_turn)

    asyncio.get_running_loop().call_soon(take_turn)
    working = greenlets.start(lambda: log_messages("orders", 0, rows))
    assert not working.done()
    messages = await working
    assert turns >= 2
    assert [message.body for message in messages] == [b"small", LARGE] * 8


async def test_a_little_is_unpacked_at_once() -> None:
    working = greenlets.start(lambda: log_messages("orders", 0, [row(0, LARGE), row(1, b"small")]))
    assert working.done()
    assert [message.body for message in working.result()] == [LARGE, b"small"]


def test_in_a_thread_nothing_waits() -> None:
    assert len(log_messages("orders", 0, [row(offset, LARGE) for offset in range(16)])) == 16
