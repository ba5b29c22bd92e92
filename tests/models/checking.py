"""The checker of the models beside this file: Spin goes through every state of a configuration, and stops at a fault.

    scripts/check-model                         the small configurations, and every broken variant: two minutes
    scripts/check-model --large                 the large ones: half an hour, 2.6 GB
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
from typing import NamedTuple

FOLDER = Path(__file__).parent
LONGEST = 3600
"""Seconds for one configuration."""
DEPTH = 100_000
"""Steps of one run; the search is not complete where one has more, and that is an error."""
MEMORY = 2600
"""Megabytes for one configuration; the search is not complete where it needs more, and that is an error."""


class Variant(NamedTuple):
    """One that must be found: in a small configuration, and by what examines the thing that it breaks.

    Attributes:
        constants: the configuration.
        found_by: words of the line with the assertion that fails first.
    """

    constants: str
    found_by: str


@dataclass(frozen=True, slots=True)
class Model:
    """A model and its configurations, each a list of constants.

    Attributes:
        small: those that CI goes through.
        large: those of `scripts/check-model --large`.
        broken: variants, by name, that must be found.
        limits: as `broken`: what the protocol does not promise.
        ending: configurations that are searched for runs without an end.
        ending_large: as `ending`, of `scripts/check-model --large`.
    """

    name: str
    small: tuple[str, ...]
    large: tuple[str, ...]
    broken: dict[str, Variant]
    limits: dict[str, Variant]
    ending: tuple[str, ...]
    ending_large: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        """Its text."""
        return FOLDER / f"{self.name}.pml"


_ONE_CHECK = "FAULTS=1 MAX_CHECKS=1"
_ONE_MOVE = "RESENDS=0 MESSAGES=1 MOVES=1"
_TWO_MOVES = "RESENDS=0 MESSAGES=1 MOVES=2"
_THERE_AND_BACK = "RESENDS=0 MESSAGES=1 MOVES=2 GIVEN_UP=0"
_THREE_MOVES = "RESENDS=0 MESSAGES=1 MOVES=3 GIVEN_UP=0"
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
                "ACK_BEFORE_COMMIT": Variant(f"{_ONE_CHECK} RETURNS=0 RESENDS=0", "what is told is decided"),
                "OP_UNGUARDED": Variant(f"{_ONE_CHECK} RETURNS=0", "a verdict never changes"),
                "CHECK_SENT_FIRST": Variant(f"{_ONE_CHECK} RETURNS=0 RESENDS=0", "at most so many checks"),
                "RELEASE_APART": Variant(f"{_ONE_CHECK} RETURNS=0 RESENDS=0", "what is committed is visible"),
                "RETURN_UNGUARDED": Variant(_ONE_CHECK, "at most so many checks"),
                "LATE_COMMIT_UNGUARDED": Variant(f"{_ONE_CHECK} RETURNS=0 RESENDS=0", "a verdict never changes"),
                "PARKED_DECIDED": Variant(f"{_ONE_CHECK} RETURNS=0 RESENDS=0", "parked is decided by nobody"),
            },
            {},
            ("FAULTS=0 RESENDS=0 MAX_CHECKS=1 RETURNS=0",),
            ("FAULTS=1 RESENDS=0 MAX_CHECKS=1 RETURNS=0",),
        ),
        Model(
            "sends",
            ("FAULTS=1",),
            ("FAULTS=2", "FAULTS=2 MESSAGES=3 RESENDS=0"),
            {
                "RESEND_STORED_AGAIN": Variant("", "one effect of one id"),
                "GUESS_UNGUARDED": Variant("", "one message at an offset"),
                "OFFSETS_APART": Variant("", "no skip"),
            },
            {},
            ("FAULTS=1 RESENDS=0",),
        ),
        Model(
            "leases",
            ("MESSAGES=1", "MAX_ATTEMPTS=1"),
            ("MESSAGES=1 FAULTS=2 MAX_ATTEMPTS=3", "NACKS=0 RESENDS=0", "FAULTS=0 RESENDS=0"),
            {
                "NO_TOKEN": Variant("MESSAGES=1", "an old receipt does nothing"),
                "TAKE_OVER_UNLOCKED": Variant("MESSAGES=1", "nobody else has a live lease"),
                "DEAD_LETTER_APART": Variant("MESSAGES=1", "a dead letter once"),
                "REDO_WITHOUT_LOOK": Variant("MESSAGES=1", "what consumers get is theirs"),
                "STILL_TRUE_WITHOUT_TIME": Variant("MESSAGES=1", "told as done"),
            },
            {"TWO_ANSWERS": Variant("MESSAGES=1", "told as done, in time")},
            ("MESSAGES=1 FAULTS=0 RESENDS=0", "MESSAGES=1 FAULTS=1 RESENDS=0"),
        ),
        Model(
            "cells",
            ("FAULTS=2",),
            ("FAULTS=4 RESENDS=2",),
            {
                "DECIDED_WITHOUT_GUARD": Variant("", "one effect in each cell"),
                "RELEASE_NOT_RECORDED": Variant("", "half visible: only while"),
                "RELEASED_TWICE": Variant("", "one effect in each cell"),
                "ACK_BEFORE_BOTH": Variant("", "prepared in both"),
                "OTHER_CELL_FIRST": Variant("", "the home cell first"),
            },
            {"TOGETHER": Variant("", "both at once")},
            ("FAULTS=1 RESENDS=0",),
        ),
        Model(
            "moving",
            (f"FAULTS=1 {_ONE_MOVE}", f"FAULTS=0 {_TWO_MOVES}"),
            (
                f"FAULTS=1 {_THERE_AND_BACK}",
                f"FAULTS=1 {_TWO_MOVES}",
                f"FAULTS=0 {_THREE_MOVES}",
                "FAULTS=1 RESENDS=0 MESSAGES=2 MOVES=1",
            ),
            {
                "NOT_SEALED": Variant(_ONE_MOVE, "one place to write to"),
                "NOT_COMPARED": Variant(_ONE_MOVE, "nothing skipped"),
                "COPY_UNGUARDED": Variant(_ONE_MOVE, "no message is twice in a log"),
                "UNSEALED_BY_ANY_MOVE": Variant(f"FAULTS=0 {_TWO_MOVES}", "one place to write to"),
                "SEALED_THOUGH_GIVEN_UP": Variant(f"FAULTS=0 {_TWO_MOVES}", "home knows where"),
                "NOT_PUT_BACK": Variant(f"FAULTS=0 {_TWO_MOVES}", "a receipt is good"),
                "WITHDRAWN_WITHOUT_NOTE": Variant(f"FAULTS=0 {_TWO_MOVES}", "nothing skipped"),
                "SEALED_AGAIN": Variant(f"FAULTS=0 {_THERE_AND_BACK}", "home knows where"),
                "CLEANED_UNGUARDED": Variant(f"FAULTS=0 {_THERE_AND_BACK}", "nothing skipped"),
                "BEGUN_AGAIN": Variant(f"FAULTS=0 {_THREE_MOVES}", "each move ends"),
            },
            {},
            (f"FAULTS=0 {_ONE_MOVE}",),
            (f"FAULTS=1 {_ONE_MOVE}", f"FAULTS=0 {_TWO_MOVES}"),
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
        line: that of the assertion, in the model.
        steps: those to the fault, where they were asked for.
    """

    violation: str
    states: int
    seconds: float
    line: str = ""
    steps: str = ""


def require() -> None:
    """Looks for the tools.

    Raises:
        Absent: one of them is missing.
    """
    missing = [tool for tool in ("spin", "gcc") if shutil.which(tool) is None]
    if missing:
        raise Absent(f"{' and '.join(missing)} is missing: apt-get install spin gcc libc6-dev")


def check(
    model: Model,
    constants: str,
    *,
    optimise: bool = False,
    steps: bool = False,
    ending: bool = False,
    depth: int = DEPTH,
) -> Found:
    """Goes through all states of a configuration, up to the first fault.

    A run that has ended has to have kept every promise (`Quiet` in each model): what is promised for some time later
    holds if every run ends.

    Args:
        model: the model.
        constants: of the configuration, separated by spaces.
        optimise: have the search compiled for speed, which takes longer than a small one.
        steps: read the steps to a fault.
        ending: look for runs without an end instead, in which nobody who can go on is left out for ever.
        depth: steps of a run; one that has more is an error.

    Raises:
        Absent: the tools are missing.
        Incomplete: it took too long, or more memory or steps than it may.
    """
    require()
    began = time.monotonic()
    defined = [f"-D{constant}" for constant in constants.split()]
    with tempfile.TemporaryDirectory(prefix="halfmq-model-") as folder:
        _run(folder, "spin", *defined, "-a", str(model.path))
        search = ("-DNP", "-DNFAIR=3") if ending else ("-DSAFETY", "-DNOFAIR")
        flags = (*search, "-DCOLLAPSE", f"-DMEMLIM={MEMORY}")
        _run(folder, "gcc", "-O2" if optimise else "-O0", "-w", *flags, "-o", "pan", "pan.c")
        output = _run(folder, "./pan", f"-m{depth}", "-n", *(("-l", "-f") if ending else ()))
        violation = re.search(r"^pan:\d+: (.*?)(?: \(at depth \d+\))?$", output, re.MULTILINE)
        states = re.search(r"^\s*(\d\S*) states, stored", output, re.MULTILINE)
        errors = re.search(r"errors: (\d+)", output)
        if states is None or errors is None or (violation is None) != (errors[1] == "0"):
            raise Incomplete(output)
        # What is too deep is cut off, and the search goes on.
        if violation is None and ("Search not completed" in output or "max search depth too small" in output):
            raise Incomplete(f"{model.name} {constants}: {output}")
        trail = line = ""
        if violation and not ending:
            how = ("-p", "-g") if steps else ()
            trail = _run(folder, "spin", *defined, "-k", f"{model.path.name}.trail", *how, str(model.path))
            failed = re.search(r"\.pml:(\d+), Error: assertion violated", trail)
            line = model.path.read_text().splitlines()[int(failed[1]) - 1].strip() if failed else ""
    seconds = time.monotonic() - began
    return Found(violation[1] if violation else "", int(float(states[1])), seconds, line, trail if steps else "")


def _run(folder: str, *command: str) -> str:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=LONGEST)
    except subprocess.TimeoutExpired as error:
        raise Incomplete(f"{' '.join(command)} took more than {LONGEST} s") from error
    if done.returncode:
        raise Incomplete(f"{' '.join(command)}: {done.stdout}{done.stderr}")
    return done.stdout


def _tell(what: str, found: Found, found_by: str = "") -> bool:
    good = found_by in found.line if found_by else not found.violation
    told = f"found: {found.line or found.violation}" if found.violation else "no fault"
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
        found = check(model, f"{variants[given.show[1]].constants} {name}", steps=True)
        print(found.steps)
        return 0 if found.violation else 1
    good = True
    for model in MODELS.values():
        for constants in model.large if given.large else model.small:
            good &= _tell(f"{model.name} {constants}", check(model, constants, optimise=given.large))
        for constants in model.ending_large if given.large else model.ending:
            good &= _tell(f"{model.name} ends, {constants}", check(model, constants, ending=True, optimise=given.large))
        if given.large:
            continue
        for name, variant in model.broken.items():
            found = check(model, f"{variant.constants} BROKEN_{name}")
            good &= _tell(f"{model.name} BROKEN_{name}", found, variant.found_by)
        for name, variant in model.limits.items():
            found = check(model, f"{variant.constants} {name}")
            good &= _tell(f"{model.name} {name}", found, variant.found_by)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
