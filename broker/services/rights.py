"""What principals may do now: the rules of the database, as they were half a second ago."""

from __future__ import annotations

import asyncio
import time
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.domain.access import Need, Principal, Rules
from broker.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from broker.domain.access import Action, Kind
    from broker.ports.access import RuleStore

MOST_REMEMBERED = 50_000
"""Answers that are remembered until the rules change."""
LONGEST_NAME = 255
"""Characters of a name; those of resources are shorter."""
MOST_SETS = 1000
"""Sets of numbers that are remembered likewise."""


class Rights:
    """Answers whether a principal may do something, without a query.

    Attributes:
        version: grows whenever the rules have changed.
    """

    def __init__(self, store: RuleStore) -> None:
        """Nothing is allowed until `refresh`."""
        self._store = store
        self._state: tuple[int, int] | None = None
        self._rules = Rules()
        self._answers: dict[tuple[Principal, Need], bool] = {}
        self.version = 0

    async def refresh(self) -> bool:
        """Reads the rules if they have changed; returns whether they have."""
        state = await self._store.rules_state()
        if state == self._state:
            return False
        # A change between the two reads is read again with the next one.
        self._rules = Rules(each.rule for each in await self._store.access_rules())
        self._state = state
        self._answers = {}
        self.version += 1
        return True

    def allow(self, principal: Principal, need: Need) -> bool:
        """Whether a principal may do this; also from threads of the storage."""
        if len(need.name) > LONGEST_NAME:
            return False  # There is nothing of such a name, and it is not to be remembered.
        # Those of these rules: they may be replaced meanwhile.
        rules, answers = self._rules, self._answers
        known = answers.get((principal, need))
        if known is None:
            known = any(rules.allow(principal, Need(action, need.kind, need.name)) for action in need.action)
            if len(answers) >= MOST_REMEMBERED:
                answers.clear()
            answers[principal, need] = known
        return known


@dataclass(frozen=True, slots=True)
class Judge:
    """Answers whether a principal may do one thing, by the names of one kind of resource."""

    rights: Rights
    principal: Principal
    action: Action
    kind: Kind

    def __call__(self, name: str) -> bool:
        """Whether they may do it with this one."""
        return self.rights.allow(self.principal, Need(self.action, self.kind, name))


class Numbered:
    """Groups by their numbers, which are never used again: which ones a judge allows, without a query mostly."""

    def __init__(self, read: Callable[[], Awaitable[dict[int, str]]], *, pause: float = 1.0) -> None:
        """Takes how to read the names of all by their numbers, and the seconds between two reads."""
        self._read = read
        self._pause = pause
        self._names: dict[int, str] | None = None
        self._read_began = float("-inf")
        self._reading: asyncio.Task[None] | None = None
        self._allowed: dict[tuple[Principal, Action], tuple[int, frozenset[int]]] = {}

    async def allowed(self, may: Judge, *, again: bool = False) -> frozenset[int]:
        """The numbers of those that are allowed; `again`: also if they are new, which may take a moment."""
        now = time.monotonic()
        # One read a second, for all that wait: whoever asks in vain must not make others wait.
        while self._names is None or (again and self._read_began < now):
            if self._reading is None:
                self._reading = asyncio.get_running_loop().create_task(self._refresh())
            await asyncio.shield(self._reading)
        key = (may.principal, may.action)
        version, numbers = self._allowed.get(key, (-1, frozenset[int]()))
        if version != may.rights.version:
            version = may.rights.version
            numbers = frozenset({number for number, name in self._names.items() if may(name)})
            if len(self._allowed) >= MOST_SETS:
                self._allowed = {}
            self._allowed[key] = version, numbers
        return numbers

    async def _refresh(self) -> None:
        try:
            await asyncio.sleep(max(0.0, self._read_began + self._pause - time.monotonic()))
            began = time.monotonic()
            names = await self._read()
            if names != self._names:
                self._names, self._allowed = names, {}
            self._read_began = began
        finally:
            self._reading = None


NOBODY = Principal("")
"""Stands for a caller who is not known; rules name nobody like this."""


class Caller:
    """Who makes the current call, for servicers that judge items."""

    def __init__(self, principal: Principal | None = None, rights: Rights | None = None) -> None:
        """Takes the principal and the rights; without them everything is allowed."""
        self.principal = principal
        self._rights = rights

    @property
    def name(self) -> str:
        """The principal's name; empty if access is off."""
        return self.principal.name if self.principal is not None else ""

    @property
    def version(self) -> int:
        """Grows whenever the rules have changed."""
        return 0 if self._rights is None else self._rights.version

    @property
    def unbounded(self) -> bool:
        """Whether access is off: everything is allowed."""
        return self._rights is None

    def may(self, action: Action, kind: Kind, name: str) -> bool:
        """Whether they may do this."""
        judge = self.judge(action, kind)
        return judge is None or judge(name)

    def not_allowed(self, action: Action, kind: Kind, names: Iterable[str], most: int) -> frozenset[str]:
        """With which of these they may not do this.

        Raises:
            InvalidArgument: they are too many different ones to be judged.
        """
        if self.unbounded:
            return frozenset()
        different = set(names)
        if len(different) > most:
            raise InvalidArgument(f"{len(different)} topics in one request; {most} are allowed.", field="topic")
        return frozenset({name for name in different if not self.may(action, kind, name)})

    def judge(self, action: Action, kind: Kind) -> Judge | None:
        """Whether they may do this, by name; None: with everything."""
        if self._rights is None:
            return None
        return Judge(self._rights, self.principal or NOBODY, action, kind)


EVERYBODY = Caller()
CALLER: ContextVar[Caller] = ContextVar("caller", default=EVERYBODY)
"""Of the call that runs in this task."""
