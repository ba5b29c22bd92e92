"""Stored forms of bodies: compressed if and only if they are shorter than the body."""

from __future__ import annotations

import os
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from zstandard import ZstdCompressor, ZstdDecompressor

from broker.domain.topic import Compression
from broker.storage.tables.bodies import SMALLEST, BrokenBody, is_stored, pack, unpack

LONG = b"a line that is repeated, " * 50
PACKED = pack(LONG, Compression.ZSTD)


def likely(body: bytes) -> bytes:
    return body * 20


@given(
    st.one_of(st.binary(max_size=2000), st.binary(min_size=5, max_size=50).map(likely)), st.sampled_from(Compression)
)
def test_what_is_packed_is_unpacked(body: bytes, compression: Compression) -> None:
    stored = pack(body, compression)
    assert len(stored) <= len(body)
    assert (stored == body) is (len(stored) == len(body)), "a form of the same length would be taken for the body"
    assert unpack(stored, len(body)) == body
    assert is_stored(stored, len(body), body)


def test_only_what_gets_shorter_is_compressed() -> None:
    assert len(PACKED) < len(LONG) // 10
    assert pack(LONG, Compression.NONE) is LONG
    for body in (b"", b"x" * (SMALLEST - 1), os.urandom(SMALLEST), os.urandom(1 << 20)):
        assert pack(body, Compression.ZSTD) is body
    assert len(pack(b"x" * SMALLEST, Compression.ZSTD)) < SMALLEST


def test_it_is_a_frame_that_other_programs_read() -> None:
    assert ZstdDecompressor().decompress(PACKED) == LONG


@given(st.binary(max_size=300), st.integers(0, 300))
def test_anything_else_is_the_body_or_refused(stored: bytes, size: int) -> None:
    try:
        assert len(unpack(stored, size)) == size
    except BrokenBody as error:
        assert str(error)


@given(st.integers(0, len(PACKED) - 1), st.integers(1, 255))
def test_a_changed_byte_is_noticed_or_keeps_the_length(place: int, change: int) -> None:
    damaged = bytearray(PACKED)
    damaged[place] ^= change
    try:
        assert len(unpack(bytes(damaged), len(LONG))) == len(LONG)
    except BrokenBody as error:
        assert str(error)


@pytest.mark.parametrize(
    ("stored", "size", "text"),
    [
        (PACKED, len(LONG) + 1, f"its zstd frame is of {len(LONG)} bytes, the body of {len(LONG) + 1}"),
        (PACKED, len(PACKED) - 1, f"{len(PACKED)} bytes are stored of a body of {len(PACKED) - 1}"),
        (PACKED[:-1], len(LONG), "did not decompress full frame"),
        (PACKED + b"x", len(LONG), "1 bytes of unused data"),
        (b"", len(LONG), "content size"),
        (ZstdCompressor(write_content_size=False).compress(LONG), len(LONG), "its zstd frame is of -1 bytes"),
    ],
)
def test_what_is_damaged_is_told(stored: bytes, size: int, text: str) -> None:
    with pytest.raises(BrokenBody, match=text):
        unpack(stored, size)


def test_a_frame_of_gigabytes_takes_no_memory() -> None:
    bomb = ZstdCompressor().compress(b"x" * (1 << 28))
    tracemalloc.start()
    try:
        with pytest.raises(BrokenBody):
            unpack(bomb, len(bomb) + 1)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("body", [LONG[:-1], LONG[:-1] + b"?", b"", LONG + b" "])
@pytest.mark.parametrize("stored", [LONG, PACKED])
def test_another_body_is_not_the_stored_one(stored: bytes, body: bytes) -> None:
    assert not is_stored(stored, len(LONG), body)
