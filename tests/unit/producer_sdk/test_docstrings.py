"""Each form of the SDKs tells by itself what its calls take and raise: editors show nothing of the other form."""

from __future__ import annotations

import inspect
import re

import pytest

import consumer_sdk
import producer_sdk

PAIRS = [
    (plain, getattr(package, f"Async{name}"))
    for package in (producer_sdk, consumer_sdk)
    for name in package.__all__
    if hasattr(package, f"Async{name}") and inspect.isclass(plain := getattr(package, name))
]
MADE = {producer_sdk.Admin, producer_sdk.Producer, producer_sdk.TransactionProducer, consumer_sdk.Consumer}
METHODS = [
    pytest.param(plain, other, name, id=f"{plain.__name__}.{name}")
    for plain, other in PAIRS
    for name, member in inspect.getmembers(plain, inspect.isfunction)
    # What applications do not make by themselves has a constructor of its own.
    if (not name.startswith("_") or (name == "__init__" and plain in MADE)) and hasattr(other, name) and member.__doc__
]


def told(member: object, section: str) -> set[str]:
    """The names that a section of a docstring explains."""
    found = re.search(rf"^{section}:\n((?:    .*\n?|\n)*)", inspect.getdoc(member) or "", re.MULTILINE)
    return set(re.findall(r"^    (\w+):", found.group(1), re.MULTILINE)) if found else set()


def test_both_forms_are_compared() -> None:
    assert {plain.__name__ for plain, _ in PAIRS} >= {"Producer", "TransactionProducer", "Consumer", "Admin"}
    assert len(METHODS) > 40


@pytest.mark.parametrize(("plain", "other", "name"), METHODS)
def test_the_synchronous_form_tells_the_same_errors_and_arguments(plain: type, other: type, name: str) -> None:
    ours, theirs = getattr(plain, name), getattr(other, name)
    assert told(ours, "Raises") == told(theirs, "Raises")
    assert told(ours, "Args") == told(theirs, "Args")
    assert not re.search(r"\bee Async|\bof Async", inspect.getdoc(ours) or "")
