"""Producers with a check stream to this broker, and the choice of the next one for a check."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.ports.observer import NO_OBSERVER, Observer
from broker.ports.tracer import NO_TRACER, Tracer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from broker.ports.checks import ClaimedCheck

# A stream that does not accept a check within this many seconds is abandoned.
SEND_TIMEOUT = 5.0
# One check in this many ignores earlier answers, so that producers that were silent once get checks again.
EVEN_TURN = 8
# Unanswered checks remembered per stream.
MOST_OPEN = 10_000


@dataclass(slots=True, eq=False)
class _Parcel:
    check: ClaimedCheck
    sent: asyncio.Future[bool]
    handed_over: bool = False


class CheckSession:
    """One producer's check stream."""

    def __init__(self, client_id: str) -> None:
        """Takes the client id; CheckSessions adds it to groups."""
        self.client_id = client_id
        self.group_ids: set[int] = set()
        self._parcels: asyncio.Queue[_Parcel | None] = asyncio.Queue()
        self._under_way: set[_Parcel] = set()
        self._open: dict[bytes, int] = {}
        self.silent = False
        self.closed = False
        self.sent = 0

    @property
    def unanswered(self) -> int:
        """Checks that it has not answered, as far as they are remembered."""
        return len(self._open)

    @property
    def open_checks(self) -> list[tuple[bytes, int]]:
        """Transactions and numbers of these checks."""
        return list(self._open.items())

    def asked(self, transaction_id: bytes, check_number: int) -> None:
        """Records that a check was sent to it."""
        self._open.pop(transaction_id, None)
        self._open[transaction_id] = check_number
        if len(self._open) > MOST_OPEN:
            del self._open[next(iter(self._open))]

    def answered(self, transaction_id: bytes) -> None:
        """Records an answer, UNKNOWN included; answers to checks that it did not get are ignored."""
        if transaction_id in self._open:
            del self._open[transaction_id]
            self.silent = False

    def owes(self, transaction_id: bytes) -> bool:
        """Whether it has an unanswered check of a transaction."""
        return transaction_id in self._open

    async def send(self, check: ClaimedCheck) -> bool:
        """Sends a check on the stream; returns whether it was sent, or may have been."""
        if self.closed:
            return False
        parcel = _Parcel(check, asyncio.get_running_loop().create_future())
        self._under_way.add(parcel)
        self._parcels.put_nowait(parcel)
        try:
            async with asyncio.timeout(SEND_TIMEOUT):
                return await parcel.sent
        except TimeoutError:
            # A queued check must not be sent later, after its count was undone.
            self.close()
            return parcel.handed_over
        finally:
            self._under_way.discard(parcel)

    async def outgoing(self) -> AsyncIterator[ClaimedCheck]:
        """The checks to write, in order; requesting the next one confirms that the last one was written."""
        while not self.closed:
            parcel = await self._parcels.get()
            if parcel is None or self.closed:
                return
            parcel.handed_over = True
            yield parcel.check
            if not parcel.sent.done():
                parcel.sent.set_result(True)

    def close(self) -> None:
        """Ends the stream. Queued checks were not sent; one that is being written may have reached the producer."""
        self.closed = True
        self._parcels.put_nowait(None)
        for parcel in self._under_way:
            if not parcel.sent.done():
                parcel.sent.set_result(parcel.handed_over)


class CheckSessions:
    """All check streams to this broker."""

    def __init__(self, observer: Observer = NO_OBSERVER, tracer: Tracer = NO_TRACER) -> None:
        """Starts empty; the observer and the tracer are notified of sent checks."""
        self._tracer = tracer
        self._observer = observer
        self._by_group: dict[int, dict[CheckSession, bool]] = {}
        self._sent = 0
        self._draining = False
        self.on_open: Callable[[], None] = lambda: None

    def admit(self, session: CheckSession, group_id: int, *, surely: bool = True) -> None:
        """Registers a producer for a group's checks, or ends its stream if the broker is draining.

        Args:
            session: its stream.
            group_id: the group; a session may be in several.
            surely: whether it is known to have transactions of the group; others get checks only if no such producer
            exists.
        """
        if self._draining:
            session.close()
        if session.closed:
            return
        members = self._by_group.setdefault(group_id, {})
        if members.get(session) not in {surely, True}:
            members[session] = surely
            session.group_ids.add(group_id)
            self.on_open()

    def end(self, session: CheckSession) -> None:
        """Removes a producer from all its groups."""
        session.close()
        for group_id in session.group_ids:
            members = self._by_group[group_id]
            del members[session]
            if not members:
                del self._by_group[group_id]
        session.group_ids.clear()
        if self._tracer.enabled:
            for transaction_id, check_number in session.open_checks:
                self._tracer.check_abandoned(transaction_id, check_number, session.client_id)

    def group_ids(self) -> list[int]:
        """Groups with a producer at this broker."""
        return [group_id for group_id, members in self._by_group.items() if any(not each.closed for each in members)]

    def streams(self) -> dict[int, int]:
        """Numbers of open streams, by group; may be asked in any thread."""
        return {group_id: len(members) for group_id, members in list(self._by_group.items())}

    def is_silent(self, group_id: int) -> bool:
        """Whether all local producers of a group leave checks unanswered."""
        return all(each.silent for each in self._by_group.get(group_id, {}) if not each.closed)

    async def send(self, check: ClaimedCheck) -> str | None:
        """Sends a check to the group's next producer; returns its client id, None if none could be reached."""
        for session in self._by_turns(check):
            # Before it is sent: its answer may arrive before this continues.
            session.asked(check.transaction_id, check.check_number)
            if self._tracer.enabled:
                self._tracer.check_sent(check, session.client_id)
            if await session.send(check):
                session.sent += 1
                self._observer.check_sent(check.producer_group_id, session.client_id)
                return session.client_id
            if self._tracer.enabled:
                self._tracer.check_answered(check.transaction_id, "not sent", session.client_id, "")
        self._observer.check_sent(check.producer_group_id, None)
        return None

    def _by_turns(self, check: ClaimedCheck) -> list[CheckSession]:
        """The group's producers in the order in which they get the check.

        The checks of one transaction rotate, independently of other checks, first over producers without unanswered
        checks. A producer that gets the transaction again has let an interval pass: it counts as silent until it
        answers.
        """
        self._sent += 1
        own = check.transaction_id
        members = self._by_group.get(check.producer_group_id, {})
        order: list[CheckSession] = []
        for sure in (True, False):
            some = [session for session, known in members.items() if known is sure]
            start = (check.check_number + int.from_bytes(own[-4:], "big")) % len(some) if some else 0
            some = [*some[start:], *some[:start]]
            for session in some:
                if session.owes(own):
                    session.silent = True
                    self._observer.check_unanswered(check.producer_group_id)
            even = self._sent % EVEN_TURN == 0
            some.sort(key=lambda session: (session.owes(own), session.silent and not even))
            order += some
        return order

    def close_all(self) -> None:
        """Ends all current and future streams, so that producers switch to another broker."""
        self._draining = True
        for members in list(self._by_group.values()):
            for session in list(members):
                session.close()
