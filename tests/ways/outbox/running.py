"""A relay that runs while a test does."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from producer_sdk.outbox import Outbox, RelayTarget
    from producer_sdk.outbox.relay import Relay


@contextlib.contextmanager
def relaying(outbox: Outbox, target: RelayTarget) -> Iterator[Relay]:
    """Relays in threads of this process."""
    relay = outbox.relay(target)
    relay.start()
    try:
        yield relay
    finally:
        relay.stop()


def until(holds: Callable[[], Any], seconds: float = 30.0) -> None:
    """Waits for what has no signal."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)
