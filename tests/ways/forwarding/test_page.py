"""docs/ways/forwarding.md and its example run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from producer_sdk import Message, Producer
from producer_sdk.testing import embedded_broker
from ways.shops import texts

CHECKOUT = Path(__file__).parents[3]
PAGE = CHECKOUT / "docs" / "ways" / "forwarding.md"
EXAMPLE = CHECKOUT / "examples" / "ways" / "forward.py"


def test_the_listing_runs() -> None:
    (listing,) = re.findall(r"^```python\n(.*?)^```\n", PAGE.read_text(encoding="utf-8"), re.S | re.M)
    names: dict[str, Any] = {}

    def stop_when_forwarded() -> None:
        deadline = time.monotonic() + 30
        while texts(broker.endpoint, "clean") != ["A", "B", "C"] and time.monotonic() < deadline:
            time.sleep(0.05)
        names["consumer"].stop()

    with embedded_broker(["raw", "clean", "audit"]) as broker:
        with Producer(broker.endpoint) as producer:
            producer.send_many([Message("raw", body) for body in "abc"])
        names["endpoint"] = broker.endpoint
        threading.Thread(target=stop_when_forwarded).start()
        exec(compile(listing, str(PAGE), "exec"), names)
        assert texts(broker.endpoint, "clean") == ["A", "B", "C"]
        assert texts(broker.endpoint, "audit") == ["a", "b", "c"]


def test_the_example_forwards() -> None:
    with embedded_broker(["raw", "clean"]) as broker:
        with Producer(broker.endpoint) as producer:
            producer.send("raw", "a lamp")
        example = subprocess.Popen(
            [sys.executable, "-u", str(EXAMPLE), broker.endpoint], stdout=subprocess.PIPE, text=True
        )
        try:
            assert example.stdout is not None
            assert example.stdout.readline() == "a lamp -> A LAMP\n"
        finally:
            example.terminate()
            example.communicate()
        assert texts(broker.endpoint, "clean") == ["A LAMP"]
