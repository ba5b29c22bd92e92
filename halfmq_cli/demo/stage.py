"""The child's side of children.py: settings in, events out, and the end."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from typing import Any

_lock = threading.Lock()


def settings() -> dict[str, Any]:
    """Prepares this process and reads its settings."""
    # Ctrl-C in a terminal reaches all processes; the parent handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    read: dict[str, Any] = json.loads(sys.stdin.readline())
    return read


def say(event: str, **fields: Any) -> None:
    """Reports an event; it is flushed when this returns, even if the process is killed next."""
    line = json.dumps({"event": event, **fields}) + "\n"
    with _lock:
        sys.stdout.write(line)
        sys.stdout.flush()


def wait_for_end() -> None:
    """Waits until the parent ends this process, or has ended itself."""
    sys.stdin.read()


def die() -> None:
    """Ends this process at once, as a crash, the kernel or an operator's kill -9 would."""
    os.kill(os.getpid(), signal.SIGKILL)
