"""Leases as values: bitmaps, tokens, receipts."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.domain.lease import (
    LARGEST_RANGE,
    NEVER,
    Lease,
    Receipt,
    bits_of,
    offsets_of,
    parse_offsets,
    receipt_gone,
    runs,
)
from broker.errors import InvalidArgument, StaleReceipt

LEASE = Lease(1, 2, 3, first=10, count=4, token=99, attempt=1, available_at=1000, owner="a")


def test_a_new_lease_is_open() -> None:
    assert list(LEASE.open_offsets()) == [10, 11, 12, 13]
    assert not LEASE.done


def test_settling() -> None:
    lease = LEASE.settle([11]).settle([13, 11])
    assert (list(lease.open_offsets()), lease.done, lease.moved) == ([10, 12], False, 0)
    assert lease.settle([10, 12]).done
    assert list(LEASE.open_offsets()) == [10, 11, 12, 13], "leases are values"


@pytest.mark.parametrize("count", [1, 3])
def test_a_joined_lease_is_no_longer_than_its_bitmap(count: int) -> None:
    queued = replace(LEASE, attempt=0, available_at=NEVER, owner=None)
    longest = queued.joined(replace(queued, first=queued.first + LARGEST_RANGE - count, count=count))
    assert longest is not None
    assert (longest.count, len(longest.open_offsets())) == (LARGEST_RANGE, queued.count + count)
    assert queued.joined(replace(queued, first=queued.first + LARGEST_RANGE - count + 1, count=count)) is None


def test_moving_out_marks_what_was_open_only() -> None:
    lease = LEASE.settle([10]).move_out([10, 11])
    assert (lease.settled, lease.moved) == (0b0011, 0b0010)


def test_taking_over() -> None:
    lease = LEASE.settle([10]).take_over(owner="b", token=100, until=2000)
    assert lease == replace(LEASE, settled=1, owner="b", token=100, attempt=2, available_at=2000)


@pytest.mark.parametrize("offset", [10, 13])
def test_a_fresh_receipt(offset: int) -> None:
    LEASE.check_receipt(99, offset)
    LEASE.settle([offset]).check_receipt(99, offset)


@pytest.mark.parametrize(
    ("lease", "token", "offset"),
    [
        (LEASE, 98, 10),
        (LEASE, 100, 10),
        (LEASE, 99, 9),
        (LEASE, 99, 14),
        (LEASE.move_out([10]), 99, 10),
        (LEASE.take_over(owner="b", token=100, until=2000), 99, 10),
    ],
)
def test_a_stale_receipt(lease: Lease, token: int, offset: int) -> None:
    with pytest.raises(StaleReceipt) as refused:
        lease.check_receipt(token, offset)
    assert refused.value.reason == "RECEIPT_STALE"


def test_a_receipt_without_its_lease() -> None:
    assert receipt_gone().reason == "RECEIPT_GONE"


@given(st.sets(st.integers(0, 200)), st.sets(st.integers(0, 200)))
def test_settled_and_moved_and_open_add_up(acked: set[int], given_back: set[int]) -> None:
    lease = replace(LEASE, first=0, count=201).settle(acked).move_out(given_back)
    assert set(lease.open_offsets()) == set(range(201)) - acked - given_back
    assert {i for i in range(201) if lease.moved >> i & 1} == given_back - acked
    assert lease.done == (len(acked | given_back) == 201)


@given(st.integers(0, (1 << 63) - 1), st.integers(0, (1 << 63) - 1), st.integers(0, (1 << 63) - 1))
def test_a_receipt_handle_comes_back(lease_id: int, token: int, offset: int) -> None:
    receipt = Receipt(lease_id, token, offset)
    assert Receipt.parse(receipt.handle) == receipt
    assert receipt.handle.rpartition(".")[0] == receipt.lease_key


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "..",
        "1.2",
        "1.2.3.4",
        "1.2.",
        "x.y.z",
        "-1.2.3",
        "1.-2.3",
        f"{1 << 63:x}.2.3",
        f"1.{1 << 63:x}.3",
        "1.2.3\x00",
        "é.2.3",
        "1.2." + "f" * 1000,
        "0x1.2.3",
        " 1.2.3",
        "1_0.2.3",
    ],
)
def test_what_is_no_receipt_handle(text: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        Receipt.parse(text)
    assert (refused.value.reason, refused.value.field) == ("RECEIPT_INVALID", "receipt_handle")
    assert len(refused.value.message) < 400


@given(st.text())
def test_any_text_is_a_receipt_or_refused(text: str) -> None:
    try:
        receipt = Receipt.parse(text)
    except InvalidArgument:
        return
    assert all(0 <= number < 1 << 63 for number in (receipt.lease_id, receipt.token, receipt.offset))


@given(st.sets(st.integers(0, 60)))
def test_runs(offsets: set[int]) -> None:
    stretches = runs(sorted(offsets))
    assert [o for first, count in stretches for o in range(first, first + count)] == sorted(offsets)
    assert all(a + n < b for (a, n), (b, _) in itertools.pairwise(stretches))


@given(st.lists(st.integers(0, (1 << 63) - 1), min_size=1, max_size=20))
def test_offsets_are_read_back(offsets: list[int]) -> None:
    assert parse_offsets([f"{offset:x}" for offset in offsets]) == offsets


@pytest.mark.parametrize("text", ["", "2,3", "g", "-1", "+1", "01", "0x1", "1 ", "1_0", "A", "8000000000000000", "1\n"])
def test_what_is_no_offset_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument):
        parse_offsets(["1", text])


@given(st.integers(0, 1000), st.lists(st.integers(0, 300), min_size=1, max_size=30))
def test_offsets_and_bits(first: int, places: list[int]) -> None:
    offsets = sorted({first + place for place in places})
    bits = bits_of(offsets, first)
    assert bits == sum(1 << offset - first for offset in offsets)
    assert list(offsets_of(bits, first)) == offsets
    assert bits_of([first + place for place in places], first) == bits


def test_no_bits_are_no_offsets() -> None:
    assert list(offsets_of(0, 7)) == []
