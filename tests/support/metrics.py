"""Reads metrics, and asks promtool about them."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from typing import TYPE_CHECKING
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from support.patience import HANG

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE = 30.0
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def text_at(endpoint: str) -> str:
    """The metrics at an address."""
    with urlopen(f"http://{endpoint}/metrics", timeout=PATIENCE) as answer:
        return str(answer.read().decode())


def samples_of(text: str) -> Samples:
    """Values by name and labels."""
    return {
        (each.name, frozenset(each.labels.items())): each.value
        for family in text_string_to_metric_families(text)
        for each in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    """The sum of the values with this name, and these among their labels."""
    return sum(each for (own, its), each in samples.items() if own == name and labels.items() <= set(its))


def families_of(text: str) -> set[str]:
    """The names of all metrics, as their descriptions have them."""
    return {line.split(" ")[2] for line in text.splitlines() if line.startswith("# TYPE ")}


def await_samples(endpoint: str, holds: Callable[[Samples], bool], what: str) -> Samples:
    """The metrics, once something holds of them."""
    until = time.monotonic() + PATIENCE
    while not holds(found := samples_of(text_at(endpoint))):
        assert time.monotonic() < until, f"{what}: {found}"
        time.sleep(0.1)
    return found


def promtool(*arguments: str, given: str = "") -> str:
    """What promtool says; it must be content. Skips the test where it is not installed, but fails it in CI."""
    command = shutil.which("promtool")
    if command is None:
        reason = "promtool is not installed: apt-get install prometheus"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    done = subprocess.run([command, *arguments], input=given, capture_output=True, text=True, check=False, timeout=HANG)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
