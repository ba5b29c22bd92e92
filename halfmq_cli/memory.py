"""How the C library keeps what was freed."""

from __future__ import annotations

import ctypes
import sys

# Names and numbers of mallopt(3).
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_LARGE = 1536 * 1024
# Kept free at the end of the heap: what a batch needs, again and again. To take it again costs more than to fill it.
_KEPT = 8 * 1024 * 1024
_ARENAS = 2


def give_back_large_blocks() -> None:
    """Has large blocks go back to the system when they are freed.

    By itself the C library begins to keep them once the first one was freed, and does so in an arena for every few
    threads: after a burst of large messages a broker would stay as large as it was at its worst.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGE)
        mallopt(_TRIM_THRESHOLD, _KEPT)
        mallopt(_ARENA_MAX, _ARENAS)
