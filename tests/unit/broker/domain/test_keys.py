"""Hashes of keys: the same on every broker and for ever, for rows written once are looked up years later."""

from __future__ import annotations

import pytest

from broker.domain.keys import dedup_hash, key_hash


@pytest.mark.parametrize(
    ("key", "expected"), [("order 1", -2956733091741747309), ("ü", 6192904641445441335), ("", -1970711489451281740)]
)
def test_a_key_has_one_hash_for_ever(key: str, expected: int) -> None:
    assert key_hash(key) == expected


def test_hashes_of_keys_fit_a_signed_column() -> None:
    hashes = {key_hash(f"{number}") for number in range(10_000)}
    assert len(hashes) == 10_000
    assert -(1 << 63) <= min(hashes) < 0 < max(hashes) < 1 << 63


def test_dedup_hashes() -> None:
    assert dedup_hash("order 1").hex() == "2493c327cdc7350c079e5642ff454a67"
    assert len({dedup_hash(f"{number}") for number in range(1000)}) == 1000
