"""How bodies are shown: bounded, whatever is in them."""

from __future__ import annotations

import pytest

from broker.console.rendering import LARGER, forms_of

MOST = 64 * 1024


def test_a_body_is_shown_as_json_as_text_and_in_hex() -> None:
    forms = forms_of(b'{"order": 1}')
    assert list(forms) == ["JSON", "text", "hex"]
    assert forms["JSON"] == '{\n  "order": 1\n}'


@pytest.mark.parametrize("depth", [200, 230, 900])
def test_json_that_is_much_longer_when_indented_is_shown_as_text(depth: int) -> None:
    body = b"[" * depth + b",".join([b"1"] * 30_000) + b"]" * depth
    forms = forms_of(body)
    assert list(forms) == ["text", "hex"]
    assert sum(len(text) for text in forms.values()) < 8 * LARGER * MOST


def test_json_nested_without_end_is_shown_as_text() -> None:
    assert list(forms_of(b"[" * 30_000 + b"]" * 30_000)) == ["text", "hex"]


def test_only_the_beginning_of_a_body_is_shown() -> None:
    forms = forms_of(b"x" * 10_000, 4_096)
    assert forms["text"] == "x" * 4_096
    assert len(forms["hex"].splitlines()) == 256
    assert "JSON" not in forms_of(b"1" * 4_097, 4_096)
