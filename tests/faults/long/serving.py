"""`halfmq serve` whose hours are shorter: what no setting names is set before it starts.

    python -m faults.long.serving HOUR SWEEP serve ...

HOUR is how many seconds an hour takes, SWEEP how many are between two rounds of retention. If HALFMQ_LONG_TRACE names a
folder, each SIGUSR1 adds a file with what takes memory, and what has come since the one before.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import tracemalloc
from collections import Counter
from pathlib import Path

from broker import config
from broker.maintenance import retention
from broker.services import catalog, creations
from broker.storage.delivery import group_views
from halfmq_cli import main
from support.memory import resident

SHOWN = 60


def shorten(hour: float, sweep: float) -> None:
    """Sets the times that work by the hour or the day."""
    retention.SEEN_EVERY = group_views.SEEN_EVERY = int(hour * 1e6)  # type: ignore[attr-defined]
    retention.KEEP_REFUSED = int(24 * hour * 1e6)
    retention.RetentionSweeper.__init__.__kwdefaults__["interval"] = sweep  # type: ignore[index]
    creations.WINDOW = hour
    catalog.DAY = int(hour * 1e6)  # type: ignore[attr-defined]
    config.BOUNDS["audit_days"] = (0, config.BOUNDS["audit_days"][1])


class Trace:
    """Writes what takes memory."""

    def __init__(self, folder: str) -> None:
        tracemalloc.start(1)
        self._folder = Path(folder)
        self._number = 0
        self._objects: Counter[str] = Counter()
        self._sizes: Counter[str] = Counter()

    def __call__(self, *_: object) -> None:
        """Objects by type, and the lines that allocated what is still there; all of Python's, and of the process."""
        gc.collect()
        in_all = tracemalloc.get_traced_memory()[0]
        objects = Counter(type(each).__name__ for each in gc.get_objects())
        found = tracemalloc.take_snapshot().statistics("lineno")
        sizes = Counter({f"{each.traceback}": each.size for each in found})
        lines = [f"{in_all:>12} of Python, {resident(os.getpid()):>12} of the process"]
        lines += [f"{count:>9} {count - self._objects[name]:>+9} {name}" for name, count in objects.most_common(SHOWN)]
        grown = {name: size - self._sizes[name] for name, size in sizes.items()}
        lines += [
            f"{grown[each]:>+9} {sizes[each]:>9} {each}" for each in sorted(grown, key=lambda n: -grown[n])[:SHOWN]
        ]
        (self._folder / f"{os.getpid()}-{self._number}").write_text("\n".join(lines))
        self._number += 1
        self._objects, self._sizes = objects, sizes


if __name__ == "__main__":
    shorten(float(sys.argv[1]), float(sys.argv[2]))
    del sys.argv[1:3]
    if folder := os.environ.pop("HALFMQ_LONG_TRACE", ""):
        signal.signal(signal.SIGUSR1, Trace(folder))
    main()
