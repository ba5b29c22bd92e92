"""Finds the one of a database's servers that accepts writes, and follows it.

Each server is asked; nothing is concluded from a server that does not answer, except on Galera. Writes never go to two:
a group elects one primary, on Galera brokers agree on one node, and where nothing decides (plain replication) two
servers that both accept writes count as none, until one of them has said that it does not any more, or is gone. A
server that was started outside of its cluster, or in a new one, is none of it.
"""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

from broker.storage.engine.cluster.role import Kind, Role

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future

    from broker.storage.engine.cluster.addresses import Address

logger = logging.getLogger("halfmq.storage")

ANSWER_WITHIN = 2.0
"""Seconds for a server's answer about its role."""
OTHERS_WITHIN = 1.0
"""Seconds to wait for the other servers when one has said that it is writable, and nothing that they say changes that.
"""
SILENCE = 3.0
"""Galera: seconds without a report of any broker after which the writer is moved to another node."""
PAUSE = 0.2
"""Seconds between two rounds of those who wait for a primary."""


class NoPrimary(Exception):
    """No server accepts writes, or it is not clear which one should."""


class Probe(Protocol):
    """Asks one server. For one thread at a time.

    Attributes:
        address: of the server.
        waiting: it is being asked.
    """

    address: Address
    waiting: bool

    def ask(self) -> Role:
        """The server's role.

        Raises:
            Exception: the driver's own error when the server cannot be reached.
        """
        ...

    def take_over(self, role: Role) -> bool:
        """Galera: makes this node the writer, instead of the one in its role; returns whether it is."""
        ...

    def close(self) -> None:
        """Closes its connection."""
        ...


class Answer(NamedTuple):
    """A server's role, or why there is no answer; `absent`: nothing listens there."""

    address: Address
    role: Role | None
    error: str = ""
    absent: bool = False

    def __str__(self) -> str:
        """Both, for operators."""
        if self.role is None:
            return f"{self.address}: {self.error}"
        return f"{self.address}: {'primary' if self.role.writable else self.role.reason}"


class PrimaryFinder:
    """Knows which server accepts writes. For several threads.

    Attributes:
        answers: what the servers said when they were last asked.
        trusted: see the constructor.
        latest_view: of a group, see Role.view: the latest one of those that each server told of last.
    """

    def __init__(
        self,
        probes: Sequence[Probe],
        on_change: Callable[[Address | None], None],
        *,
        kind: Kind | None = None,
        trusted: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing is asked yet.

        Args:
            probes: one for each server, in the order of preference.
            on_change: called when another server is the primary, or, with None, when the primary is none any more.
            kind: of the cluster that the caller's sessions are made for; None: of any.
            trusted: there is one address, which is used whatever it says of itself: a server that stands alone can be
                read while it accepts no writes, and a proxy connects to the primary.
            clock: in seconds.
        """
        self.answers: Sequence[Answer] = ()
        self.trusted = trusted
        self.latest_view = (0, 0)
        self._only = probes[0].address if trusted else None
        self._kind = kind
        self._probes = {probe.address: probe for probe in probes}
        self._on_change = on_change
        self._clock = clock
        self._looking = threading.Lock()
        self._looks = 0
        self._threads = ThreadPoolExecutor(len(probes), thread_name_prefix="halfmq-primary")
        self._address: Address | None = None
        self._was: Address | None = None
        self._writable: bool | None = None
        self._views: dict[Address, tuple[int, int]] = {}
        self._contenders: frozenset[Address] = frozenset()
        self._cluster = ""
        self._heard: tuple[str, int] | None = None
        self._heard_at = 0.0
        self._refused = 0

    def find(self, within: float) -> Address:
        """The primary, by what is known, or by asking until it is found.

        Raises:
            NoPrimary: none was found within this many seconds.
        """
        if self._only is not None:
            return self._only
        until = self._clock() + within
        while (found := self._address) is None:
            looks = self._looks
            if self._looking.acquire(timeout=max(until - self._clock(), 0.0)):
                try:
                    # Of many who wait, one looks for all.
                    if self._address is None and self._looks == looks:
                        self._look()
                finally:
                    self._looking.release()
            if self._address is None:
                if self._clock() + PAUSE >= until:
                    raise NoPrimary(self._explanation())
                time.sleep(PAUSE)
        return found

    @property
    def is_writable(self) -> bool:
        """Whether writes were accepted somewhere when the servers were last asked and answered."""
        return self._writable is True

    def accepts(self, address: Address, role: Role) -> bool:
        """Whether a new connection to a server with this role may be used.

        Not to a former primary. Connections to that were cut when another one was found, but not those that were being
        made.
        """
        return role.writable and role.view >= self.latest_view and address == self._was

    def look(self) -> None:
        """Asks all servers. If the primary is another one, or none any more, connections to the former one are cut."""
        with self._looking:
            self._look()

    def suspect(self, address: Address) -> None:
        """Has `find` ask again: this server could not be used."""
        if self._address == address and self._only is None:
            self._address = None

    def close(self) -> None:
        """Closes the connections."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for probe in self._probes.values():
            if not probe.waiting:
                probe.close()

    def _look(self) -> None:
        self._looks += 1
        self.answers = self._of_this_cluster(self._ask_all())
        roles = {each.address: each.role for each in self.answers if each.role is not None}
        found = self._decide(roles)
        if self._only is not None:
            self._notice(self._only, roles.get(self._only))
            return
        current = self._address or self._was
        if found is not None:
            self._address, self._cluster = found, roles[found].cluster[0]
            if found != self._was:
                self._tell(found)
        elif current is not None and (current in roles or self._is_contested(roles)):
            # It says so itself, or it is not clear which one is.
            self._address = None
            if self._was is not None:
                self._tell(None)

    def _tell(self, found: Address | None) -> None:
        was, self._was = self._was, found
        if found is None:
            logger.warning("the database has no primary: %s", self._explanation())
        elif was is not None or self._writable is False:
            logger.warning("the database's primary is %s now", found)
        self._writable = found is not None
        self._on_change(found)

    def _notice(self, address: Address, role: Role | None) -> None:
        """One address: a proxy may have connected it to another server, or the server changed."""
        if role is None:
            return
        was, self._writable = self._writable, role.writable
        if was is not None and was is not role.writable:
            state = "accepts writes again" if role.writable else f"accepts no writes: {role.reason}"
            logger.warning("the database's server %s", state)
            self._on_change(None)
        if not role.writable:
            # A name may lead to another server by now.
            self._probes[address].close()

    def _ask_all(self) -> list[Answer]:
        began = time.monotonic()
        asked: dict[Future[Role], Probe] = {}
        for probe in self._probes.values():
            if not probe.waiting:
                probe.waiting = True
                asked[self._threads.submit(_ask, probe)] = probe
        answers: dict[Address, Answer] = {}
        pending = set(asked)
        until = began + ANSWER_WITHIN
        while pending and (left := until - time.monotonic()) > 0:
            done, pending = wait(pending, left, FIRST_COMPLETED)
            for each in done:
                answers[asked[each].address] = _answer(asked[each].address, each)
            if any(map(self._is_enough, answers.values())):
                until = min(until, began + OTHERS_WITHIN)
        return [answers.get(address) or Answer(address, None, "no answer") for address in self._probes]

    def _is_enough(self, answer: Answer) -> bool:
        """Whether a server is the primary, whatever others say: without a cluster the one so far may have come back."""
        if answer.role is None or not answer.role.writable:
            return False
        return answer.role.kind is not Kind.ALONE or answer.address == self._was

    def _of_this_cluster(self, answers: Sequence[Answer]) -> Sequence[Answer]:
        """Lets no server be the primary that was started outside of its cluster, and accepts writes for that.

        Where sessions are not made for a cluster, and there is one, nothing is: they lack what keeps writes in one
        place there.
        """
        kinds = {answer.role.kind for answer in answers if answer.role is not None}
        if self._only is not None:
            return answers
        if self._kind is not None and not kinds <= {self._kind}:
            answers = [
                answer
                if answer.role is None or (answer.role.kind is self._kind and self._kind is not Kind.ALONE)
                else answer._replace(role=_foreign(answer.role, self._kind))
                for answer in answers
            ]
        return self._of_this_galera(answers)

    def _of_this_galera(self, answers: Sequence[Answer]) -> Sequence[Answer]:
        """Lets no node be the writer that is in another cluster than the one in use, such as one that it began anew."""
        named = any(answer.role is not None and answer.role.writer for answer in answers)

        def own(answer: Answer) -> Answer:
            role = answer.role
            if role is None or not role.node:
                return answer
            reason = ""
            if self._cluster and role.cluster[0] != self._cluster:
                reason = (
                    "it is in another Galera cluster than the one in use; if that is meant, start the brokers again"
                )
            elif named and role.writable and not role.writer:
                reason = "it is in a Galera cluster without halfmq's tables, and another node has them"
            return answer._replace(role=_outside(role, reason)) if reason else answer

        return [own(answer) for answer in answers]

    def _decide(self, roles: Mapping[Address, Role]) -> Address | None:
        writable = {address: role for address, role in roles.items() if role.writable}
        self._contenders = self._contending(roles, writable)
        galera = {address: role for address, role in roles.items() if role.node}
        if galera and not writable:
            return self._move_writer(galera)
        self._heard = None
        # One that does not answer stands for what it told last: it may be the present primary, and slow.
        self._views = {**self._views, **{address: role.view for address, role in roles.items()}}
        self.latest_view = max(self._views.values(), default=(0, 0))
        if not writable or self._is_contested(roles):
            return None
        if any(role.kind is Kind.ALONE for role in writable.values()):
            return next(iter(writable))
        return next((address for address, role in writable.items() if role.view == self.latest_view), None)

    def _move_writer(self, ready: Mapping[Address, Role]) -> Address | None:
        """Galera: makes a node the writer if there is none, or if nobody has reported for some time that he uses it."""
        if len({role.cluster for role in ready.values()}) > 1:
            return None
        # One that takes no COMMIT, such as with read_only, does not keep the others from it.
        address, role = list(ready.items())[self._refused % len(ready)]
        heard = max(((each.writer, each.beats) for each in ready.values()), key=lambda pair: pair[1])
        now = self._clock()
        if heard != self._heard:
            self._heard, self._heard_at = heard, now
        if role.writer and now - self._heard_at < SILENCE:
            return None
        if not self._probes[address].take_over(role):
            self._refused += 1
            return None
        self._heard, self._refused = None, 0
        return address

    def _contending(self, roles: Mapping[Address, Role], writable: Mapping[Address, Role]) -> frozenset[Address]:
        """Servers that accept writes beside one another where an operator or a tool decides.

        One that was among them stays that while it does not answer, until it says otherwise or is gone.
        """
        absent = {each.address for each in self.answers if each.absent}
        still = self._contenders - absent - (roles.keys() - writable.keys())
        if len(writable) > 1 and any(role.kind is Kind.ALONE for role in writable.values()):
            still |= writable.keys()
        return still if len(still) > 1 else frozenset()

    def _is_contested(self, roles: Mapping[Address, Role]) -> bool:
        """Whether several servers accept writes, and nothing decides between them.

        Primaries of a group are compared by their views, unless one of the servers began a group of its own.
        """
        writable = {address: role for address, role in roles.items() if role.writable}
        if any(role.kind is Kind.ALONE for role in writable.values()):
            return len(self._contenders | writable.keys()) > 1
        return len({(role.view[0], role.cluster) for role in writable.values()}) > 1

    def _explanation(self) -> str:
        roles = {answer.address: answer.role for answer in self.answers if answer.role is not None}
        writable = {address: role for address, role in roles.items() if role.writable}
        told = "; ".join(map(str, self.answers))
        silent = self._contenders - roles.keys()
        if len(writable) + len(silent) > 1:
            remedy = "set read_only on the others"
            if any(role.kind is Kind.GROUP for role in writable.values()):
                remedy = "they are in different groups, end one of those (STOP GROUP_REPLICATION)"
            elif any(role.kind is Kind.GALERA for role in writable.values()):
                remedy = "they are in different clusters, end one of those"
            elif silent:
                remedy = f"set read_only on {', '.join(map(str, silent))}, which accepted them when it last answered"
            count = len(writable) + len(silent)
            return f"{count} servers accept writes, and nothing tells which one is the primary: {remedy} ({told})"
        if len({role.cluster for role in roles.values() if role.node}) > 1:
            return f"no server is the primary: the nodes are in different clusters, end one of those ({told})"
        if any(role.view < self.latest_view for role in writable.values()):
            late = ", ".join(str(each) for each, view in self._views.items() if view == self.latest_view)
            told += (
                f"; {late} told of a later change of the group, and does not answer: if it is gone for good, start the"
                " brokers again"
            )
        return f"no server is the primary ({told})"


def _foreign(role: Role, kind: Kind) -> Role:
    """The role of a server that is none of the cluster."""
    if kind is Kind.ALONE:
        reason = "some of the servers are in a cluster, which was not seen at the start: start again"
    elif role.kind is Kind.ALONE:
        reason = f"it runs outside of {kind.value}, in which the others are"
    else:
        reason = f"it is in {role.kind.value}, and the others are in {kind.value}"
    return _outside(role, reason)


def _outside(role: Role, reason: str) -> Role:
    """The role of a server that is neither the primary nor may become it."""
    return replace(role, writable=False, reason=reason, node="")


def _ask(probe: Probe) -> Role:
    try:
        return probe.ask()
    finally:
        probe.waiting = False


def _answer(address: Address, asked: Future[Role]) -> Answer:
    error = asked.exception()
    if error is None:
        return Answer(address, asked.result())
    # PyMySQL's error has the cause as an attribute.
    absent = isinstance(getattr(error, "original_exception", error), ConnectionRefusedError)
    return Answer(address, None, str(error), absent)
