"""Packed decimals, against how they are packed: groups of nine digits, whatever the precision and the scale."""

from __future__ import annotations

from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from halfmq_connect.cdc.binlog.numbers import decimal_size, decimal_text

SIZES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)


def packed(text: str, precision: int, scale: int) -> bytes:
    before, _, after = text.lstrip("-").partition(".")
    before = before.rjust(precision - scale, "0")[-(precision - scale) or len(before) :]
    first = len(before) % 9
    groups = [before[:first], *(before[at : at + 9] for at in range(first, len(before), 9))]
    groups += [after[at : at + 9] for at in range(0, len(after), 9)]
    raw = b"".join(int(each).to_bytes(SIZES[len(each)], "big") for each in groups if each)
    raw = bytes([raw[0] ^ 0x80, *raw[1:]])
    return bytes(each ^ 0xFF for each in raw) if text.startswith("-") else raw


@given(st.data())
def test_decimals_of_all_sizes(data: st.DataObject) -> None:
    precision = data.draw(st.integers(1, 65))
    scale = data.draw(st.integers(0, min(precision, 38)))
    digits = data.draw(st.integers(-(10**precision) + 1, 10**precision - 1))
    text = f"{Decimal((digits < 0, tuple(map(int, str(abs(digits)))), -scale)):f}"
    raw = packed(text.replace("0.", ".", 1) if scale == precision else text, precision, scale)
    assert len(raw) == decimal_size(precision, scale)
    assert decimal_text(raw, precision, scale) == text
