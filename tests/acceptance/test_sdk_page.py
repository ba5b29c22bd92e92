"""docs/sdk.md: its Python blocks run one after the other, as one program."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

from producer_sdk.testing import embedded_broker

PAGE = Path(__file__).parents[2] / "docs" / "sdk.md"


async def test_the_blocks_of_the_page_run() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```\n", PAGE.read_text(encoding="utf-8"), re.S | re.M)
    assert blocks

    def run() -> None:
        with embedded_broker(topics=["orders", "payments"]) as broker:
            names: dict[str, Any] = {"endpoint": broker.endpoint}
            for block in blocks:
                exec(compile(block, str(PAGE), "exec"), names)

    await asyncio.to_thread(run)
