"""A cycle: clients at work, one to three troubles at the same time, all healed; then everything is judged."""

from __future__ import annotations

import random
import sys
import threading
import time
from typing import TYPE_CHECKING

from faults.history import judge
from faults.load import Load
from faults.mixed.names import Names
from faults.mixed.troubles import TROUBLES, ClockJumps

if TYPE_CHECKING:
    from faults.mixed.site import Site
    from faults.mixed.troubles import Trouble

MOST_TROUBLES = 3
BEGIN_WITHIN = 1.0
COMMITS_BEFORE, COMMITS_AFTER = 10, 20
RIVALS = 0.15
PATIENCE = 6.0


def troubles_of(site: Site, seed: int) -> list[Trouble]:
    """What goes wrong in the cycle with this seed."""
    fate = random.Random(seed)
    possible = [each for each in TROUBLES if each.possible(site)]
    return [chosen(site, fate) for chosen in fate.sample(possible, fate.randint(1, MOST_TROUBLES))]


def run_cycle(site: Site, seed: int) -> list[str]:
    """Everything that contradicts something else, in words."""
    troubles = troubles_of(site, seed)
    print(f"{site.kind} cycle {seed}: {', '.join(map(str, troubles))}", file=sys.stderr, flush=True)
    began = time.monotonic()
    with (
        Names(site.endpoints, seed, PATIENCE) as names,
        Load(site.endpoints, seed=seed, checked=True, rivals=RIVALS, patience=PATIENCE) as load,
    ):
        load.history.await_commits(COMMITS_BEFORE)
        _make_trouble(troubles, random.Random(seed + 1))
        site.heal()
        site.await_health()
        load.history.await_commits(COMMITS_AFTER, timeout=90)
    with site.client(seed) as client:
        found = load.finish(client)
        found.leases_kept = not any(isinstance(each, ClockJumps) for each in troubles)
        wrong = judge(load.history, found)
        wrong += load.contradictions
        wrong += names.judge(client)
    for number, station in enumerate(site.stations):
        wrong += [f"broker {number}: {line}" for line in station.errors()]
        if station.broker.process.poll() is not None:
            wrong.append(f"broker {number} ended by itself: {station.broker.process.returncode}")
    for each in wrong:
        print(f"  VIOLATION {each}", file=sys.stderr)
    print(
        f"  {load.history.acknowledged} commits acknowledged, {load.history.unanswered} calls without an answer, "
        f"{time.monotonic() - began:.0f} s, {len(wrong)} violations",
        file=sys.stderr,
        flush=True,
    )
    return wrong


def _make_trouble(troubles: list[Trouble], fate: random.Random) -> None:
    """All of it, each in a thread of its own; returns when it is over."""
    errors: list[BaseException] = []

    def happen(trouble: Trouble, after: float) -> None:
        try:
            time.sleep(after)
            trouble.begin()
            try:
                time.sleep(trouble.lasts)
            finally:
                trouble.end()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=happen, args=(each, fate.uniform(0, BEGIN_WITHIN))) for each in troubles]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
