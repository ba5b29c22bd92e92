"""docs/sdk.md: its Python blocks run one after the other, as one program."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from producer_sdk.testing import embedded_broker
from support.sdk_page import PAGE, ROOT, blocks

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


async def test_the_blocks_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples")
    assert blocks()

    def run() -> None:
        with embedded_broker(topics=["orders", "payments"]) as broker:
            names: dict[str, Any] = {"endpoint": broker.endpoint, "url": f"sqlite:///{tmp_path / 'shop.db'}"}
            for block in blocks():
                exec(compile(block, str(PAGE), "exec"), names)

    await asyncio.to_thread(run)
