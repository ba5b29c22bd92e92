"""Whether principals may do things by the rules of this moment, remembered until these change or too much is known."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from broker.domain.access import Need, Rules

if TYPE_CHECKING:
    from broker.domain.access import Action, Kind, Principal

MOST_REMEMBERED = 20_000
"""Answers and judges that are remembered: those about names that are not there, too, which anybody may think up."""
LONGEST_NAME = 255
"""Characters of a name; those of resources are shorter."""


class Judges:
    """Makes judges, one for each principal, action and kind, and replaces what they remember."""

    def __init__(self) -> None:
        """Nothing is allowed until `replace`."""
        self.memory = _Memory(Rules(), 0)
        self._replacing = threading.Lock()

    @property
    def version(self) -> int:
        """Grows with each change of the rules."""
        return self.memory.version

    def replace(self, rules: Rules) -> None:
        """Takes the rules that count from now on."""
        with self._replacing:
            self._begin(_Memory(rules, self.memory.version + 1))

    def judge(self, principal: Principal, action: Action, kind: Kind) -> Judge:
        """One that may be kept: it knows the rules of each moment."""
        memory, key = self.memory, (principal, action, kind)
        found = memory.judges.get(key)
        if found is None:
            found = memory.judges[key] = Judge(self, principal, action, kind)
            self.count(memory)
        return found

    def count(self, memory: _Memory) -> None:
        """Counts something that is remembered; where it is too much, all is forgotten."""
        memory.left -= 1
        if memory.left <= 0:
            with self._replacing:
                # Other rules may have come meanwhile.
                if memory is self.memory:
                    self._begin(_Memory(memory.rules, memory.version))

    def _begin(self, memory: _Memory) -> None:
        before, self.memory = self.memory, memory
        before.clear()


class _Memory:
    """What is known by one set of rules. Judges that last see by it whether what they know still counts."""

    __slots__ = ("answers", "judges", "left", "mark", "rules", "version")

    def __init__(self, rules: Rules, version: int) -> None:
        self.mark = object()
        self.rules = rules
        self.version = version
        self.judges: dict[tuple[Principal, Action, Kind], Judge] = {}
        self.answers: list[dict[str, bool]] = []
        self.left = MOST_REMEMBERED

    def clear(self) -> None:
        """Lets go of everything, though judges of streams keep this for a while."""
        self.judges.clear()
        for each in self.answers:
            each.clear()
        self.answers.clear()


class Judge:
    """Answers whether a principal may do one thing, by the names of one kind of resource; also in threads."""

    __slots__ = ("_judges", "_known", "action", "kind", "principal")

    def __init__(self, judges: Judges, principal: Principal, action: Action, kind: Kind) -> None:
        """Takes where the rules are, and what it judges."""
        self.principal = principal
        self.action = action
        self.kind = kind
        self._judges = judges
        # Not the memory itself: it has the rules, and whoever does not call any more must not keep these.
        self._known: tuple[object, dict[str, bool]] = (None, {})

    @property
    def version(self) -> int:
        """Grows with each change of the rules."""
        return self._judges.version

    def __call__(self, name: str) -> bool:
        """Whether they may do it with this one."""
        memory = self._judges.memory
        of, answers = self._known
        if of is not memory.mark:
            answers = self._begin(memory)
        known = answers.get(name)
        return self._find(memory, answers, name) if known is None else known

    def once(self, name: str) -> bool:
        """The same, without remembering it."""
        return self._judged(self._judges.memory.rules, name)

    def _begin(self, memory: _Memory) -> dict[str, bool]:
        answers: dict[str, bool] = {}
        memory.answers.append(answers)
        self._known = memory.mark, answers
        self._judges.count(memory)
        return answers

    def _find(self, memory: _Memory, answers: dict[str, bool], name: str) -> bool:
        known = self._judged(memory.rules, name)
        if len(name) <= LONGEST_NAME:
            answers[name] = known
            self._judges.count(memory)
        return known

    def _judged(self, rules: Rules, name: str) -> bool:
        # There is nothing of a longer name.
        return len(name) <= LONGEST_NAME and any(
            rules.allow(self.principal, Need(action, self.kind, name)) for action in self.action
        )
