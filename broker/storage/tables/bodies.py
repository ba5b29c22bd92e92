"""Bodies as stored: as they are, or compressed by zstd.

A stored body is compressed if and only if it has another length than the column `size`, which is the length of the
body itself. So a compressed one is stored only where it is shorter, and needs no mark; copies between tables copy both
columns. It is one complete zstd frame that tells its content's size.
"""

from __future__ import annotations

import threading

from zstandard import ZstdCompressor, ZstdDecompressor, ZstdError, frame_content_size

from broker.domain.topic import Compression

SMALLEST = 128
"""Bytes of the smallest body that is compressed: shorter ones do not get shorter by much, if at all."""
LEVEL = 3
_LARGEST_WINDOW = 32 * 1024 * 1024
"""Bytes; a body, which is its own window, has half of it at most."""

PACKED_SIZE = "CASE WHEN LENGTH(body) <> size THEN size END"
"""To select beside `body`: the size of the body if it is compressed. Otherwise NULL, so that rows have one shape."""


class BrokenBody(ValueError):
    """A stored body is neither the body nor its compressed form."""


class _Tools(threading.local):
    """A thread's own: they are not for several threads at a time, and take longer to make than to use."""

    def __init__(self) -> None:
        self.compress = ZstdCompressor(level=LEVEL).compress
        self.decompress = ZstdDecompressor(max_window_size=_LARGEST_WINDOW).decompress


_tools = _Tools()


def pack(body: bytes, compression: Compression) -> bytes:
    """A body as it is stored: compressed if its topic is, and it gets shorter."""
    if compression is not Compression.ZSTD or len(body) < SMALLEST:
        return body
    packed = _tools.compress(body)
    return packed if len(packed) < len(body) else body


def unpack(stored: bytes, size: int) -> bytes:
    """A body from its stored form, which takes no more memory than its size.

    Raises:
        BrokenBody: it is damaged.
    """
    length = len(stored)
    if length == size:
        return stored
    if length > size:
        raise BrokenBody(f"{length} bytes are stored of a body of {size}")
    try:
        told = frame_content_size(stored)
        if told != size:
            raise BrokenBody(f"its zstd frame is of {told} bytes, the body of {size}")
        body = _tools.decompress(stored, max_output_size=size, allow_extra_data=False)
    except (ZstdError, MemoryError) as error:
        raise BrokenBody(f"zstd: {error}") from None
    if len(body) != size:
        raise BrokenBody(f"it unpacks to {len(body)} bytes, the body has {size}")
    return body


def is_stored(stored: bytes, size: int, body: bytes) -> bool:
    """Whether this is the stored form of a body, compressed or not.

    Raises:
        BrokenBody: it is damaged.
    """
    return len(body) == size and unpack(stored, size) == body
