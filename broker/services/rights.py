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
from broker.services.judges import LONGEST_NAME, Judge, Judges

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping

    from broker.domain.access import Action, Kind
    from broker.ports.access import RuleStore
    from broker.services.auditing import Audit
    from broker.services.quotas import Quotas

MOST_SETS = 1000
"""Sets of numbers that are remembered likewise."""


class Rights:
    """Answers whether a principal may do something, without a query.

    Attributes:
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
        self._judges = Judges()

    async def refresh(self) -> bool:
        """Reads the rules if they have changed; returns whether they have."""
        # One after the other: what was read first must not replace what was read later.
        async with self._refreshing:
            state = await self._store.rules_state()
            if state == self._state:
                return False
            # A change between the two reads is read again with the next one.
            self._judges.replace(Rules(each.rule for each in await self._store.access_rules()))
            self._state = state
            return True

    @property
    def version(self) -> int:
        """Grows whenever the rules have changed."""
        return self._judges.version

    def judge(self, principal: Principal, action: Action, kind: Kind) -> Judge:
        """Answers whether a principal may do one thing, by the names of one kind of resource."""
        return self._judges.judge(principal, action, kind)


class Numbered:
    """Groups by their numbers, which are never used again: which ones a judge allows, without a query mostly."""

    def __init__(self, read: Callable[[], Awaitable[dict[int, str]]], *, pause: float = 1.0) -> None:
        """Takes how to read the names of all by their numbers, and the seconds between two reads."""
        self._read = read
        self._pause = pause
        self._names: dict[int, str] | None = None
        self._read_began = float("-inf")
        self._reading: asyncio.Task[None] | None = None
        self._noted: dict[int, str] = {}
        self._came: list[int] = []
        self._allowed: dict[tuple[Principal, Action], _Allowed] = {}
        self._sets: dict[frozenset[int], frozenset[int]] = {}

    def note(self, number: int, name: str) -> None:
        """Adds one that was just found or made: it is known before the next read."""
        if self._names is not None and number not in self._names:
            self._names[number] = self._noted[number] = name
            self._came.append(number)

    async def names(self, *, again: bool = False) -> Mapping[int, str]:
        """The names of all by their numbers; `again`: also if they are new, which may take a moment."""
        now = time.monotonic()
        # One read a second, for all that wait: whoever asks in vain must not make others wait.
        while (names := self._names) is None or (again and self._read_began < now):
            if self._reading is None:
                self._reading = asyncio.get_running_loop().create_task(self._refresh())
            await asyncio.shield(self._reading)
        return names

    async def allowed(self, may: Judge, *, again: bool = False) -> frozenset[int]:
        """The numbers of those that are allowed; `again`: also if they are new, which may take a moment."""
        names = await self.names(again=again)
        key = (may.principal, may.action)
        known = self._allowed.get(key)
        if known is None or known.version != may.version:
            known = _Allowed(may.version, 0, frozenset())
        if known.seen < len(self._came):
            # Judging is slow beside all else: only those that have come since.
            new = {number for number in self._came[known.seen :] if may.once(names.get(number, ""))}
            numbers = known.numbers | new
            if len(self._allowed) >= MOST_SETS:
                self._allowed, self._sets = {}, {}
            # Most of them are equal, such as those of one principal at many addresses, and may be large.
            known = _Allowed(known.version, len(self._came), self._sets.setdefault(numbers, numbers))
            self._allowed[key] = known
        return known.numbers

    async def _refresh(self) -> None:
        try:
            await asyncio.sleep(max(0.0, self._read_began + self._pause - time.monotonic()))
            began = time.monotonic()
            self._noted = {}
            names = await self._read()
            # What was noted meanwhile may not have been read.
            names |= self._noted
            before, self._names = self._names or {}, names
            self._came += [number for number in names if number not in before]
            if len(self._came) > 2 * len(names) + MOST_SETS:
                # Many were deleted meanwhile.
                self._came, self._allowed, self._sets = [*names], {}, {}
            self._read_began = began
        finally:
            self._reading = None


@dataclass(frozen=True, slots=True)
class _Allowed:
    """What a judge allowed by one version of the rules, of the first `seen` that had come."""

    version: int
    seen: int
    numbers: frozenset[int]


def action_name(action: Action) -> str:
    """As it is recorded; of several of which one is enough, the first."""
    return next((each.name or "" for each in action), "")


def resource_name(need: Need) -> str:
    """As it is recorded."""
    return f"{need.kind} {need.name[:LONGEST_NAME]}"


NOBODY = Principal("")
"""Stands for a caller who is not known; rules name nobody like this."""


class Caller:
    """Who makes the current call, for servicers that judge items.

    Attributes:
        principal: who makes it; None if access is off.
        name: of the principal; empty if access is off.
        tenant: of the principal; empty if they have none.
        call: as it is recorded.
        address: that the call came from.
    """

    __slots__ = ("_judges", "_rights", "address", "call", "name", "principal", "tenant")

    def __init__(
        self, principal: Principal | None = None, rights: Rights | None = None, call: str = "", address: str = ""
    ) -> None:
        """Takes the principal, the rights, the call and its address; without rights everything is allowed.

        `call` is its name in the record of what was refused, such as `AdminService/DeleteTopic`.
        """
        self.principal = principal
        self.name = principal.name if principal is not None else ""
        self.tenant = principal.tenant if principal is not None else ""
        self.call = call
        self.address = address
        self._rights = rights
        self._judges: dict[tuple[Action, Kind], Judge] = {}

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
            self.denied(Need(action, kind, name))
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
            may = self.judge(need.action, need.kind)
            if may is not None and not may(need.name):
                self.denied(need)
                raise Denied

    def not_allowed(self, action: Action, kind: Kind, names: Iterable[str], most: int) -> frozenset[str]:
        """With which of these they may not do this; refusals are recorded.

        Raises:
            InvalidArgument: they are too many different ones to be judged.
        """
        may = self.judge(action, kind)
        if may is None:
            return frozenset()
        different = set(names)
        if len(different) > most:
            raise InvalidArgument(f"{len(different)} topics in one request; {most} are allowed.", field="topic")
        refused = [name for name in different if not may(name)]
        for name in refused:
            self.denied(Need(action, kind, name))
        return frozenset(refused)

    def denied(self, need: Need) -> None:
        """Records a refusal."""
        if self._rights is not None and self._rights.audit is not None:
            record = AuditRecord(
                self.name, self.address, self.call, action_name(need.action), resource_name(need), AuditOutcome.DENIED
            )
            self._rights.audit.refused(record)

    def judge(self, action: Action, kind: Kind) -> Judge | None:
        """Whether they may do this, by name; None: with everything."""
        if self._rights is None:
            return None
        judge = self._judges.get((action, kind))
        if judge is None:
            judge = self._judges[action, kind] = self._rights.judge(self.principal or NOBODY, action, kind)
        return judge


EVERYBODY = Caller()
CALLER: ContextVar[Caller] = ContextVar("caller", default=EVERYBODY)
"""Of the call that runs in this task."""
CLIENT_ID: ContextVar[str] = ContextVar("client_id", default="")
"""The client that makes it, by the name that it gives itself; empty where it gives none, or has not yet."""
