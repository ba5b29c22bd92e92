"""What principals may do now: the rules of the database, as they were half a second ago."""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.domain.access import Need, Principal, Rules
from broker.errors import Denied, InvalidArgument
from broker.ports.audit import AuditOutcome, AuditRecord

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator

    from broker.domain.access import Action, Kind
    from broker.ports.access import RuleStore
    from broker.services.auditing import Audit
    from broker.services.quotas import Quotas

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
        audit: notes what is refused.
        quotas: what tenants may use.
    """

    def __init__(self, store: RuleStore, audit: Audit | None = None, quotas: Quotas | None = None) -> None:
        """Nothing is allowed until `refresh`; takes what notes refusals, and what tenants may use."""
        self._store = store
        self.audit = audit
        self.quotas = quotas
        self._refreshing = asyncio.Lock()
        self._state: tuple[int, int] | None = None
        self._rules = Rules()
        self._answers: dict[tuple[Principal, Need], bool] = {}
        self.version = 0

    async def refresh(self) -> bool:
        """Reads the rules if they have changed; returns whether they have."""
        # One after the other: what was read first must not replace what was read later.
        async with self._refreshing:
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


def action_name(action: Action) -> str:
    """As it is recorded; of several of which one is enough, the first."""
    return next((each.name or "" for each in action), "")


def resource_name(need: Need) -> str:
    """As it is recorded."""
    return f"{need.kind} {need.name[:LONGEST_NAME]}"


NOBODY = Principal("")
"""Stands for a caller who is not known; rules name nobody like this."""


class Caller:
    """Who makes the current call, for servicers that judge items."""

    def __init__(
        self, principal: Principal | None = None, rights: Rights | None = None, call: str = "", address: str = ""
    ) -> None:
        """Takes the principal, the rights, the call and its address; without rights everything is allowed.

        `call` is its name in the record of what was refused, such as `AdminService/DeleteTopic`.
        """
        self.principal = principal
        self.call = call
        self.address = address
        self._rights = rights

    @property
    def name(self) -> str:
        """The principal's name; empty if access is off."""
        return self.principal.name if self.principal is not None else ""

    @property
    def tenant(self) -> str:
        """Their tenant; empty if they have none."""
        return self.principal.tenant if self.principal is not None else ""

    def as_known(self, principal: Principal) -> Caller:
        """The same call, by somebody who is known now."""
        return Caller(principal, self._rights, self.call, principal.address)

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

    def allows(self, action: Action, kind: Kind, name: str) -> bool:
        """Whether they may do this; as `may`, but a refusal is recorded."""
        allowed = self.may(action, kind, name)
        if not allowed:
            self._denied(Need(action, kind, name))
        return allowed

    def not_known(self) -> None:
        """Records that nobody who is known makes this call."""
        if self._rights is not None and self._rights.audit is not None:
            self._rights.audit.refused(AuditRecord("", self.address, self.call, "", "", AuditOutcome.UNAUTHENTICATED))

    def enter_send(self, *, waits: bool = False) -> None:
        """Lets a call in that sends; `waits`: half messages.

        Raises:
            Overloaded: the tenant has used up its quota.
        """
        if self.tenant and self._rights is not None and self._rights.quotas is not None:
            self._rights.quotas.enter_send(self.tenant)
            if waits:
                self._rights.quotas.prepare(self.tenant)

    def sent(self, messages: int, size: int) -> None:
        """Counts what a call sends."""
        if self.tenant and self._rights is not None and self._rights.quotas is not None:
            self._rights.quotas.sent(self.tenant, messages, size)

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Counts a stream of the tenant while it lasts.

        Raises:
            Overloaded: the tenant has as many as it may have.
        """
        quotas = self._rights.quotas if self._rights is not None and self.tenant else None
        if quotas is not None:
            quotas.open_stream(self.tenant)
        try:
            yield
        finally:
            if quotas is not None:
                quotas.close_stream(self.tenant)

    def require(self, needs: Iterable[Need]) -> None:
        """Judges what a call needs; a refusal is recorded.

        Raises:
            Denied: something of it is not allowed.
        """
        for need in needs:
            if not self.may(need.action, need.kind, need.name):
                self._denied(need)
                raise Denied

    def not_allowed(self, action: Action, kind: Kind, names: Iterable[str], most: int) -> frozenset[str]:
        """With which of these they may not do this; refusals are recorded.

        Raises:
            InvalidArgument: they are too many different ones to be judged.
        """
        if self.unbounded:
            return frozenset()
        different = set(names)
        if len(different) > most:
            raise InvalidArgument(f"{len(different)} topics in one request; {most} are allowed.", field="topic")
        refused = frozenset({name for name in different if not self.may(action, kind, name)})
        for name in refused:
            self._denied(Need(action, kind, name))
        return refused

    def _denied(self, need: Need) -> None:
        if self._rights is not None and self._rights.audit is not None:
            record = AuditRecord(
                self.name, self.address, self.call, action_name(need.action), resource_name(need), AuditOutcome.DENIED
            )
            self._rights.audit.refused(record)

    def judge(self, action: Action, kind: Kind) -> Judge | None:
        """Whether they may do this, by name; None: with everything."""
        if self._rights is None:
            return None
        return Judge(self._rights, self.principal or NOBODY, action, kind)


EVERYBODY = Caller()
CALLER: ContextVar[Caller] = ContextVar("caller", default=EVERYBODY)
"""Of the call that runs in this task."""
