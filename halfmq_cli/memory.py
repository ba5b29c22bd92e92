"""Settings of the C library's allocator."""

from __future__ import annotations

import ctypes
import sys

# Names and numbers of mallopt(3).
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_LARGE = 1536 * 1024
# Free memory kept at the end of the heap, for the next batch: getting it from the system again is expensive.
_KEPT = 8 * 1024 * 1024
_ARENAS = 2


def give_back_large_blocks() -> None:
    """Returns large blocks to the system when they are freed.

    By default the C library keeps them after the first one was freed, in several arenas: after a burst of large
    messages a broker would keep its peak size.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGE)
        mallopt(_TRIM_THRESHOLD, _KEPT)
        mallopt(_ARENA_MAX, _ARENAS)
