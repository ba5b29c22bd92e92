"""Rows that are taken out of their tables come back as they were."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from broker.storage.moving.packing import pack, unpack

VALUES = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.text("aä\n\x00€𝄞"), st.binary(max_size=50))


@given(st.lists(st.lists(VALUES, min_size=3, max_size=3).map(tuple), max_size=20))
def test_what_is_packed_is_unpacked(rows: list[tuple[Any, ...]]) -> None:
    assert unpack(pack("one, two, three", rows)) == ("one, two, three", rows)


def test_a_body_takes_little_more_than_its_bytes() -> None:
    assert len(pack("body", [(b"\x00" * 1_000_000,)])) < 1_000_100
