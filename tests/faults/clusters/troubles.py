"""What happens to a cluster: a member is killed, frozen, or cut off; the primary, another one, or most of them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from support.clusters import ClusterKind, PrivateCluster

How: TypeAlias = Literal["killed", "frozen", "cut off", "cut off with its clients"]
Who: TypeAlias = Literal["the primary", "another member", "the majority"]
HOW: tuple[How, ...] = ("killed", "frozen", "cut off", "cut off with its clients")
WHO: tuple[Who, ...] = ("the primary", "another member", "the majority")


@dataclass(frozen=True)
class Trouble:
    """What happens to whom, and for how long, in seconds."""

    who: Who
    how: How
    lasts: float

    def __str__(self) -> str:
        """In words."""
        return f"{self.who} {self.how} for {self.lasts:.0f} s"

    def victims(self, cluster: PrivateCluster, primary: int) -> list[int]:
        """The members."""
        others = [member for member in cluster.members if member != primary]
        if self.who == "the primary":
            return [primary]
        # Of a majority the primary is one: without quorum it must not go on.
        return others[:1] if self.who == "another member" else [primary, *others[:1]]

    def begin(self, cluster: PrivateCluster, victims: list[int]) -> None:
        for member in victims:
            if self.how == "killed":
                cluster.kill(member)
            elif self.how == "frozen":
                cluster.freeze(member)
            else:
                cluster.isolate(member, clients=self.how != "cut off")

    def end(self, cluster: PrivateCluster, victims: list[int]) -> None:
        for member in victims:
            if self.how == "frozen":
                cluster.thaw(member)
            elif self.how != "killed":
                cluster.heal(member)
        if self.how == "killed" and self.who == "the majority":
            # Whoever is left cannot be joined: an operator starts all of it again.
            cluster.start()
        elif self.how == "killed":
            for member in victims:
                cluster.restart(member)


def trouble_of(kind: ClusterKind, seed: int) -> Trouble:
    """What happens in the cycle with this seed: each combination in turn, so that few cycles have most of them."""
    pair = kind.endswith("pair")
    all_of_them = [(who, how) for who in (WHO[:2] if pair else WHO) for how in HOW]
    who, how = all_of_them[seed % len(all_of_them)]
    return Trouble(who, how, random.Random(seed).uniform(8, 20))
