"""Where topics are placed on cells: how even that is, what moves when a cell comes or goes, what a lost cell takes.

    python benchmarks/cells/placement.py --draws 200

A cell is a database of its own; a topic is in one of them. 1,000 topics have loads of a Zipf distribution, in any
order. Loads are shares of the whole load. The table that this prints is in docs/decisions/0063-cells.md.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

TOPICS, CELLS = 1000, 16
ALLOWED = 1.25
"""Load of a cell, as a multiple of the mean, above which its topics are moved."""
GROUP_SIZES = (1, 2, 5, 10)
"""Topics that a consumer group reads."""

Placement = dict[str, int]
"""The cell of each topic."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one draw of loads under one way of placing. Loads are shares of the whole.

    Attributes:
        imbalance: load of the fullest cell, as a multiple of the mean.
        placed: topics moved to get there.
        added: topics, and load, that move when a cell is added.
        removed: topics, and load, that move when a cell is emptied.
        lost: topics, and load, in the cell with the most of it.
    """

    imbalance: float
    placed: int
    added: tuple[int, float]
    removed: tuple[int, float]
    lost: tuple[int, float]


def zipf(count: int, exponent: float, chance: random.Random) -> dict[str, float]:
    """Loads of topics, which are 1 together, in any order."""
    weights = [1 / rank**exponent for rank in range(1, count + 1)]
    total = sum(weights)
    chance.shuffle(weights)
    return {f"topic-{chance.getrandbits(64):x}": weight / total for weight in weights}


def rendezvous(topics: Collection[str], cells: Collection[int]) -> Placement:
    """Each topic in the cell whose hash with its name is the highest; nothing has to be stored."""
    return {topic: max(cells, key=lambda cell: _score(topic, cell)) for topic in topics}


def _score(topic: str, cell: int) -> bytes:
    return hashlib.blake2b(f"{cell}/{topic}".encode(), digest_size=8).digest()


def by_count(topics: Collection[str], cells: Collection[int]) -> Placement:
    """Each new topic in the cell with the fewest topics: its load is not known yet."""
    held = dict.fromkeys(cells, 0)
    placed = {}
    for topic in topics:
        placed[topic] = cell = min(held, key=lambda each: (held[each], each))
        held[cell] += 1
    return placed


def by_load(loads: Mapping[str, float], cells: Collection[int]) -> Placement:
    """Each new topic in the cell with the least load, if its own were known at once."""
    held = dict.fromkeys(cells, 0.0)
    placed = {}
    for topic, load in loads.items():
        placed[topic] = cell = min(held, key=lambda each: (held[each], each))
        held[cell] += load
    return placed


def loads_of(placed: Mapping[str, int], loads: Mapping[str, float], cells: Collection[int]) -> dict[int, float]:
    """The load of each cell."""
    held = dict.fromkeys(cells, 0.0)
    for topic, cell in placed.items():
        held[cell] += loads[topic]
    return held


def imbalance(placed: Mapping[str, int], loads: Mapping[str, float], cells: Collection[int]) -> float:
    """The load of the fullest cell as a multiple of the mean."""
    held = loads_of(placed, loads, cells)
    return max(held.values()) * len(held)


def level(placed: Placement, loads: Mapping[str, float], cells: Collection[int], allowed: float = ALLOWED) -> Placement:
    """Moves topics from the fullest cell to the emptiest one while that helps and the fullest has too much.

    The topic that is moved is the one that leaves the two most alike. One alone in a cell stays: it cannot be divided.
    """
    placed = dict(placed)
    held = loads_of(placed, loads, cells)
    stuck: set[int] = set()
    while left := [cell for cell in held if cell not in stuck]:
        full, empty = max(left, key=held.__getitem__), min(held, key=held.__getitem__)
        if held[full] * len(held) <= allowed:
            break
        gap = held[full] - held[empty]
        fitting = [topic for topic, cell in placed.items() if cell == full and loads[topic] < gap]
        if not fitting:
            stuck.add(full)
            continue
        topic = min(fitting, key=lambda each: abs(gap / 2 - loads[each]))
        placed[topic] = empty
        held[full] -= loads[topic]
        held[empty] += loads[topic]
    return placed


def moved(before: Placement, after: Placement, loads: Mapping[str, float]) -> tuple[int, float]:
    """How many topics are elsewhere, and their load."""
    changed = [topic for topic, cell in before.items() if after[topic] != cell]
    return len(changed), sum(loads[topic] for topic in changed)


def emptied(placed: Placement, loads: Mapping[str, float], gone: int, cells: Collection[int]) -> Placement:
    """The topics of a cell put into the others, the largest first, each where there is the least."""
    after = {topic: cell for topic, cell in placed.items() if cell != gone}
    held = loads_of(after, loads, [cell for cell in cells if cell != gone])
    for topic in sorted((each for each, cell in placed.items() if cell == gone), key=loads.__getitem__, reverse=True):
        after[topic] = cell = min(held, key=held.__getitem__)
        held[cell] += loads[topic]
    return after


def by_hash(loads: Mapping[str, float]) -> Outcome:
    """The cell follows from the name, and nothing is ever moved by hand."""
    cells = list(range(CELLS))
    placed = rendezvous(loads, cells)
    return Outcome(
        imbalance(placed, loads, cells),
        0,
        moved(placed, rendezvous(loads, [*cells, CELLS]), loads),
        moved(placed, rendezvous(loads, cells[1:]), loads),
        _lost(placed, loads, cells),
    )


def by_directory(loads: Mapping[str, float], place: Callable[[Collection[int]], Placement]) -> Outcome:
    """The cell is stored, and topics are moved until no cell has more than is allowed."""
    cells = list(range(CELLS))
    first = place(cells)
    placed = level(first, loads, cells)
    more = [*cells, CELLS]
    return Outcome(
        imbalance(placed, loads, cells),
        moved(first, placed, loads)[0],
        moved(placed, level(placed, loads, more), loads),
        moved(placed, level(emptied(placed, loads, 0, cells), loads, cells[1:]), loads),
        _lost(placed, loads, cells),
    )


def _lost(placed: Placement, loads: Mapping[str, float], cells: Collection[int]) -> tuple[int, float]:
    held = loads_of(placed, loads, cells)
    worst = max(held, key=held.__getitem__)
    return sum(cell == worst for cell in placed.values()), held[worst]


def untouched(size: int, cells: int = CELLS) -> float:
    """The share of consumer groups that a lost cell leaves whole, if each reads so many topics anywhere."""
    return (1 - 1 / cells) ** size


WAYS: dict[str, Callable[[Mapping[str, float]], Outcome]] = {
    "rendezvous hashing": by_hash,
    "rendezvous hashing, then moves": lambda loads: by_directory(loads, lambda cells: rendezvous(loads, cells)),
    "fewest topics, then moves": lambda loads: by_directory(loads, lambda cells: by_count(loads, cells)),
    "least load, then moves": lambda loads: by_directory(loads, lambda cells: by_load(loads, cells)),
}


def lower_bound(loads: Mapping[str, float], cells: int = CELLS) -> float:
    """The imbalance that no placement is below: the largest topic is in one cell."""
    return max(1.0, max(loads.values()) * cells)


def table(draws: int, seed: int, exponents: Sequence[float]) -> str:
    """The medians of many draws, and the worst imbalance, as rows of a page."""
    lines = [
        "| exponent | placed by | fullest cell / mean (worst) | least possible | moves at first | a cell is added"
        " | a cell is emptied | the fullest cell is lost |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for exponent in exponents:
        chance = random.Random(seed)
        drawn = [zipf(TOPICS, exponent, chance) for _ in range(draws)]
        least = statistics.median(map(lower_bound, drawn))
        for name, way in WAYS.items():
            seen = [way(loads) for loads in drawn]
            uneven = [each.imbalance for each in seen]
            cells = [
                f"{exponent:g}",
                name,
                f"{statistics.median(uneven):.2f} ({max(uneven):.2f})",
                f"{least:.2f}",
                f"{statistics.median(each.placed for each in seen):.0f}",
                *(_shown([pair(each) for each in seen]) for pair in (_added, _removed, _taken)),
            ]
            lines.append(f"| {' | '.join(cells)} |")
    kept = ", ".join(f"{size}: {untouched(size):.0%}" for size in GROUP_SIZES)
    return "\n".join([*lines, "", f"Groups that a lost cell leaves whole, by the topics that they read: {kept}"])


def _added(outcome: Outcome) -> tuple[int, float]:
    return outcome.added


def _removed(outcome: Outcome) -> tuple[int, float]:
    return outcome.removed


def _taken(outcome: Outcome) -> tuple[int, float]:
    return outcome.lost


def _shown(pairs: Sequence[tuple[int, float]]) -> str:
    topics, loads = zip(*pairs, strict=True)
    return f"{statistics.median(topics):.0f} topics, {statistics.median(loads):.1%}"


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--draws", type=int, default=200, help="draws of loads")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--exponents", type=float, nargs="+", default=[0.6, 0.8, 1.0])
    given = parser.parse_args()
    print(table(given.draws, given.seed, given.exponents))


if __name__ == "__main__":
    main()
