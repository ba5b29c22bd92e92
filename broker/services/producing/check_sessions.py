"""Producers that hold a check stream to this broker, and which of them is asked next."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.ports.observer import NO_OBSERVER, Observer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from broker.ports.checks import ClaimedCheck

# A stream that does not take a check within this many seconds is given up.
SEND_TIMEOUT = 5.0
# One check in so many goes out without regard to who answered before, so that who was silent once is asked again.
EVEN_TURN = 8
# So many checks without an answer are remembered of each stream.
MOST_OPEN = 10_000


@dataclass(slots=True, eq=False)
class _Parcel:
    check: ClaimedCheck
    sent: asyncio.Future[bool]
    handed_over: bool = False


class CheckSession:
    """One producer's check stream, as the checker sees it."""

    def __init__(self, client_id: str) -> None:
        """Takes part in the groups that CheckSessions admits it to."""
        self.client_id = client_id
        self.group_ids: set[int] = set()
        self._parcels: asyncio.Queue[_Parcel | None] = asyncio.Queue()
        self._under_way: set[_Parcel] = set()
        self._open: dict[bytes, None] = {}
        self.silent = False
        self.closed = False

    def asked(self, transaction_id: bytes) -> None:
        """Notes that a check went out to it."""
        self._open.pop(transaction_id, None)
        self._open[transaction_id] = None
        if len(self._open) > MOST_OPEN:
            del self._open[next(iter(self._open))]

    def answered(self, transaction_id: bytes) -> None:
        """Notes an answer, UNKNOWN included; what it was not asked about says nothing of how it answers."""
        if transaction_id in self._open:
            del self._open[transaction_id]
            self.silent = False

    def owes(self, transaction_id: bytes) -> bool:
        """Whether it was asked about a transaction and has not answered."""
        return transaction_id in self._open

    async def send(self, check: ClaimedCheck) -> bool:
        """Sends a check down the stream; whether it went out, or may have."""
        if self.closed:
            return False
        parcel = _Parcel(check, asyncio.get_running_loop().create_future())
        self._under_way.add(parcel)
        self._parcels.put_nowait(parcel)
        try:
            async with asyncio.timeout(SEND_TIMEOUT):
                return await parcel.sent
        except TimeoutError:
            # What waits must not go out later, after its count was given back.
            self.close()
            return parcel.handed_over
        finally:
            self._under_way.discard(parcel)

    async def outgoing(self) -> AsyncIterator[ClaimedCheck]:
        """The checks to write, in order; asking for the next one confirms that the last one was written."""
        while not self.closed:
            parcel = await self._parcels.get()
            if parcel is None or self.closed:
                return
            parcel.handed_over = True
            yield parcel.check
            if not parcel.sent.done():
                parcel.sent.set_result(True)

    def close(self) -> None:
        """Ends the stream. Checks that wait were not sent; one that is being written may have reached the producer."""
        self.closed = True
        self._parcels.put_nowait(None)
        for parcel in self._under_way:
            if not parcel.sent.done():
                parcel.sent.set_result(parcel.handed_over)


class CheckSessions:
    """All check streams to this broker."""

    def __init__(self, observer: Observer = NO_OBSERVER) -> None:
        """Starts with none; `observer` sees the checks that go out."""
        self._observer = observer
        self._by_group: dict[int, dict[CheckSession, bool]] = {}
        self._sent = 0
        self._draining = False
        self.on_open: Callable[[], None] = lambda: None

    def admit(self, session: CheckSession, group_id: int, *, surely: bool = True) -> None:
        """Has a producer asked about a group's transactions, or sends it elsewhere when all were sent elsewhere.

        Args:
            session: its stream.
            group_id: the group; a session may take part in several.
            surely: whether it is known to have transactions of the group; others are asked only where none has.
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
        """Takes a producer out of all its groups."""
        session.close()
        for group_id in session.group_ids:
            members = self._by_group[group_id]
            del members[session]
            if not members:
                del self._by_group[group_id]
        session.group_ids.clear()

    def group_ids(self) -> list[int]:
        """Groups that have a producer here."""
        return [group_id for group_id, members in self._by_group.items() if any(not each.closed for each in members)]

    def is_silent(self, group_id: int) -> bool:
        """Whether all producers that a group has here let checks go by without an answer."""
        return all(each.silent for each in self._by_group.get(group_id, {}) if not each.closed)

    async def send(self, check: ClaimedCheck) -> str | None:
        """Sends a check to the group's next producer; who got it, None when nobody could be reached."""
        for session in self._by_turns(check):
            # Before it goes out: its answer may be here before this goes on.
            session.asked(check.transaction_id)
            if await session.send(check):
                self._observer.check_sent(check.producer_group_id, session.client_id)
                return session.client_id
        self._observer.check_sent(check.producer_group_id, None)
        return None

    def _by_turns(self, check: ClaimedCheck) -> list[CheckSession]:
        """The group's producers in the order in which they are to be asked.

        The checks of one transaction go round, whatever else is asked meanwhile, and first to those that owe no answer.
        Who was asked about it before and is asked again has let an interval pass: it is silent until it answers.
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
                session.silent = session.silent or session.owes(own)
            even = self._sent % EVEN_TURN == 0
            some.sort(key=lambda session: (session.owes(own), session.silent and not even))
            order += some
        return order

    def close_all(self) -> None:
        """Ends all streams, and those still to come, so that producers go to another broker."""
        self._draining = True
        for members in list(self._by_group.values()):
            for session in list(members):
                session.close()
