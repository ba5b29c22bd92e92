"""The checker of the models beside this file: Spin goes through every state of a configuration, and stops at a fault.

    scripts/check-model                         the small configurations, and every broken variant: half a minute
    scripts/check-model --large                 the large ones: a quarter of an hour, 2 GB
    scripts/check-model --show leases NO_TOKEN  the steps that lead to a fault

A variant is the same text with a constant more, which breaks one thing that the protocol rests on.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
LONGEST = 3600
"""Seconds for one configuration."""
MEMORY = 2600
"""Megabytes for one configuration; the search is not complete where it needs more, and that is an error."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model and its configurations, each a list of constants.

    Attributes:
        small: those that CI goes through.
        large: those of `scripts/check-model --large`.
        broken: variants, by name, that must be found, each in a small configuration.
        limits: as `broken`: what the protocol does not promise.
        ending: a configuration that is searched for runs without an end.
    """

    name: str
    small: tuple[str, ...]
    large: tuple[str, ...]
    broken: dict[str, str]
    limits: dict[str, str]
    ending: str

    @property
    def path(self) -> Path:
        """Its text."""
        return FOLDER / f"{self.name}.pml"


_ONE_CHECK = "FAULTS=1 MAX_CHECKS=1"
MODELS = {
    model.name: model
    for model in (
        Model(
            "transactions",
            (f"{_ONE_CHECK} RESENDS=0",),
            (
                _ONE_CHECK,
                "FAULTS=1 MAX_CHECKS=2 RESENDS=0",
                "FAULTS=2 MAX_CHECKS=1 RESENDS=0 RETURNS=0 IN_DOUBT_MOST=2",
            ),
            {
                "ACK_BEFORE_COMMIT": f"{_ONE_CHECK} RETURNS=0 RESENDS=0",
                "OP_UNGUARDED": f"{_ONE_CHECK} RETURNS=0",
                "CHECK_SENT_FIRST": f"{_ONE_CHECK} RETURNS=0 RESENDS=0",
                "RELEASE_APART": f"{_ONE_CHECK} RETURNS=0 RESENDS=0",
                "RETURN_UNGUARDED": _ONE_CHECK,
                "LATE_COMMIT_UNGUARDED": f"{_ONE_CHECK} RETURNS=0 RESENDS=0",
            },
            {},
            "FAULTS=0 RESENDS=0 MAX_CHECKS=1 RETURNS=0",
        ),
        Model(
            "sends",
            ("FAULTS=1",),
            ("FAULTS=2", "FAULTS=2 MESSAGES=3 RESENDS=0"),
            {"RESEND_STORED_AGAIN": "", "GUESS_UNGUARDED": "", "OFFSETS_APART": ""},
            {},
            "FAULTS=1 RESENDS=0",
        ),
        Model(
            "leases",
            ("MESSAGES=1", "MAX_ATTEMPTS=1"),
            ("MESSAGES=1 FAULTS=2 MAX_ATTEMPTS=3", "NACKS=0 RESENDS=0"),
            {
                "NO_TOKEN": "MESSAGES=1",
                "TAKE_OVER_UNLOCKED": "MESSAGES=1",
                "DEAD_LETTER_APART": "MESSAGES=1",
                "REDO_WITHOUT_LOOK": "MESSAGES=1",
                "STILL_TRUE_WITHOUT_TIME": "MESSAGES=1",
            },
            {"TWO_ANSWERS": "MESSAGES=1"},
            "MESSAGES=1 FAULTS=0 RESENDS=0",
        ),
        Model(
            "cells",
            ("FAULTS=2",),
            ("FAULTS=4 RESENDS=2",),
            {
                "DECIDED_WITHOUT_GUARD": "",
                "RELEASE_NOT_RECORDED": "",
                "RELEASED_TWICE": "",
                "ACK_BEFORE_BOTH": "",
                "OTHER_CELL_FIRST": "",
            },
            {"TOGETHER": ""},
            "FAULTS=1 RESENDS=0",
        ),
        Model(
            "moving",
            ("FAULTS=1 RESENDS=0 MESSAGES=1 MOVES=1",),
            ("FAULTS=1 RESENDS=0 MESSAGES=1 MOVES=2", "FAULTS=1 RESENDS=0 MESSAGES=2 MOVES=1"),
            {
                "NOT_SEALED": "RESENDS=0 MESSAGES=1 MOVES=1",
                "NOT_COMPARED": "RESENDS=0 MESSAGES=1 MOVES=1",
                "COPY_UNGUARDED": "RESENDS=0 MESSAGES=1 MOVES=1",
                "UNSEALED_BY_ANY_MOVE": "RESENDS=0 MESSAGES=1 FAULTS=0",
                "SEALED_THOUGH_GIVEN_UP": "RESENDS=0 MESSAGES=1 FAULTS=0",
                "NOT_PUT_BACK": "RESENDS=0 MESSAGES=1",
                "WITHDRAWN_WITHOUT_NOTE": "RESENDS=0 MESSAGES=1 FAULTS=0",
            },
            {},
            "FAULTS=0 RESENDS=0 MESSAGES=1 MOVES=1",
        ),
    )
}


class Absent(Exception):
    """Spin, or the compiler that it needs, is not here."""


class Incomplete(Exception):
    """The search ended before all states were seen."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found.

    Attributes:
        violation: the assertion, or the kind of fault; empty: none, and every state was seen.
        states: how many were seen.
        seconds: how long it took, with the compiler.
        steps: those to the fault, where they were asked for.
    """

    violation: str
    states: int
    seconds: float
    steps: str = ""


def require() -> None:
    """Looks for the tools.

    Raises:
        Absent: one of them is missing.
    """
    missing = [tool for tool in ("spin", "gcc") if shutil.which(tool) is None]
    if missing:
        raise Absent(f"{' and '.join(missing)} is missing: apt-get install spin gcc libc6-dev")


def check(model: Model, constants: str, *, optimise: bool = False, steps: bool = False, ending: bool = False) -> Found:
    """Goes through all states of a configuration, up to the first fault.

    A run that has ended has to have kept every promise (`Quiet` in each model): what is promised for some time later
    holds if every run ends.

    Args:
        model: the model.
        constants: of the configuration, separated by spaces.
        optimise: have the search compiled for speed, which takes longer than a small one.
        steps: read the steps to a fault.
        ending: look for runs without an end instead, in which nobody who can go on is left out for ever.

    Raises:
        Absent: the tools are missing.
        Incomplete: it took too long, or more memory than it may.
    """
    require()
    began = time.monotonic()
    defined = [f"-D{constant}" for constant in constants.split()]
    with tempfile.TemporaryDirectory(prefix="halfmq-model-") as folder:
        _run(folder, "spin", *defined, "-a", str(model.path))
        search = ("-DNP", "-DNFAIR=3") if ending else ("-DSAFETY", "-DNOFAIR")
        flags = (*search, "-DCOLLAPSE", f"-DMEMLIM={MEMORY}")
        _run(folder, "gcc", "-O2" if optimise else "-O0", "-w", *flags, "-o", "pan", "pan.c")
        output = _run(folder, "./pan", "-m100000", "-n", *(("-l", "-f") if ending else ()))
        violation = re.search(r"^pan:\d+: (.*?)(?: \(at depth \d+\))?$", output, re.MULTILINE)
        states = re.search(r"^\s*(\d\S*) states, stored", output, re.MULTILINE)
        errors = re.search(r"errors: (\d+)", output)
        if states is None or errors is None or (violation is None) != (errors[1] == "0"):
            raise Incomplete(output)
        if violation is None and "Search not completed" in output:
            raise Incomplete(f"{model.name} {constants}: {output}")
        trail = ""
        if violation and steps:
            trail = _run(folder, "spin", *defined, "-k", f"{model.path.name}.trail", "-p", "-g", str(model.path))
    seconds = time.monotonic() - began
    return Found(violation[1] if violation else "", int(float(states[1])), seconds, trail)


def _run(folder: str, *command: str) -> str:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=LONGEST)
    except subprocess.TimeoutExpired as error:
        raise Incomplete(f"{' '.join(command)} took more than {LONGEST} s") from error
    if done.returncode:
        raise Incomplete(f"{' '.join(command)}: {done.stdout}{done.stderr}")
    return done.stdout


def _tell(what: str, found: Found, wanted: bool) -> bool:
    good = bool(found.violation) is wanted
    told = f"found: {found.violation}" if found.violation else "no fault"
    print(f"{'' if good else 'WRONG '}{what}: {found.states:,} states, {found.seconds:.1f} s, {told}", flush=True)
    return good


def main(arguments: list[str] | None = None) -> int:
    """The command; returns its status."""
    parser = argparse.ArgumentParser(prog="scripts/check-model", description="Checks the models in tests/models.")
    parser.add_argument("--large", action="store_true", help="the large configurations, without variants")
    parser.add_argument("--show", nargs=2, metavar=("MODEL", "VARIANT"), help="the steps to a variant's fault")
    given = parser.parse_args(arguments)
    if given.show:
        model = MODELS[given.show[0]]
        variants = {**model.broken, **model.limits}
        name = given.show[1] if given.show[1] in model.limits else f"BROKEN_{given.show[1]}"
        found = check(model, f"{variants[given.show[1]]} {name}", steps=True)
        print(found.steps)
        return 0 if found.violation else 1
    good = True
    for model in MODELS.values():
        for constants in model.large if given.large else model.small:
            good &= _tell(f"{model.name} {constants}", check(model, constants, optimise=given.large), wanted=False)
        if given.large:
            continue
        good &= _tell(f"{model.name} ends, {model.ending}", check(model, model.ending, ending=True), wanted=False)
        for name, constants in model.broken.items():
            good &= _tell(f"{model.name} BROKEN_{name}", check(model, f"{constants} BROKEN_{name}"), wanted=True)
        for name, constants in model.limits.items():
            good &= _tell(f"{model.name} {name}", check(model, f"{constants} {name}"), wanted=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
