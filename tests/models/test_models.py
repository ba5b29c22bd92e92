"""The protocol holds in every state of its models, and the checker finds what is broken on purpose."""

from __future__ import annotations

import re

import pytest

from models.checking import DEPTH, MODELS, Absent, Found, Incomplete, Model, check
from support.databases import in_ci

SMALL = [(model, constants) for model in MODELS.values() for constants in model.small]
ENDING = [(model, constants) for model in MODELS.values() for constants in model.ending]
BROKEN = [(model, name) for model in MODELS.values() for name in model.broken]
LIMITS = [(model, name) for model in MODELS.values() for name in model.limits]


def _checked(model: Model, constants: str, *, ending: bool = False, steps: bool = False, depth: int = DEPTH) -> Found:
    try:
        return check(model, constants, ending=ending, steps=steps, depth=depth)
    except Absent as absent:
        if in_ci():
            pytest.fail(str(absent))
        pytest.skip(str(absent))


@pytest.mark.parametrize(("model", "constants"), SMALL, ids=lambda value: getattr(value, "name", value))
def test_no_state_breaks_a_promise(model: Model, constants: str) -> None:
    found = _checked(model, constants)
    assert found.violation == ""
    # One that cannot get far proves nothing.
    assert found.states > 100_000


@pytest.mark.parametrize(("model", "constants"), ENDING, ids=lambda value: getattr(value, "name", value))
def test_every_run_ends(model: Model, constants: str) -> None:
    assert _checked(model, constants, ending=True).violation == ""


@pytest.mark.parametrize(("model", "name"), BROKEN, ids=lambda value: getattr(value, "name", value))
def test_what_is_broken_is_found(model: Model, name: str) -> None:
    assert model.broken[name].found_by in _checked(model, f"{model.broken[name].constants} BROKEN_{name}").line


def test_the_steps_to_a_fault_are_shown() -> None:
    model = MODELS["leases"]
    steps = _checked(model, f"{model.broken['NO_TOKEN'].constants} BROKEN_NO_TOKEN", steps=True).steps
    assert "due[lease[me]] = 0" in steps
    assert "(Consumers:1)" in steps


@pytest.mark.parametrize(("model", "name"), LIMITS, ids=lambda value: getattr(value, "name", value))
def test_what_is_not_promised_does_not_hold(model: Model, name: str) -> None:
    assert model.limits[name].found_by in _checked(model, f"{model.limits[name].constants} {name}").line


def test_a_search_that_is_cut_off_is_no_proof() -> None:
    with pytest.raises(Incomplete):
        _checked(MODELS["cells"], "FAULTS=1", depth=60)


@pytest.mark.parametrize("model", MODELS.values(), ids=lambda model: model.name)
def test_every_variant_of_a_model_is_checked(model: Model) -> None:
    text = model.path.read_text()
    assert set(re.findall(r"BROKEN_(\w+)", text)) == set(model.broken)
