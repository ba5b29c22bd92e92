"""A broker that delivers message groups as the real one does: one lease at a time, taken back as a whole."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc

from halfmq.v1 import consumer_pb2 as pb
from halfmq.v1 import message_pb2
from unit.consumer_sdk.stub_consume_broker import ConsumeSession, StubConsumeBroker

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass
class Group:
    """What a message group still has to deliver, and what of it is out."""

    name: str
    left: list[int]
    token: int = 1
    out: list[int] = field(default_factory=list)
    attempts: dict[int, int] = field(default_factory=dict)

    def handle(self, offset: int) -> str:
        return f"{self.name}.{self.token:x}.{offset:x}"


class FifoBroker(StubConsumeBroker):
    """Delivers `count` messages of each group, in leases of `lease_size`, each in parts of `part_size`.

    A stream ends behind so many acks and nacks as `breaks` says, without a word about the last of them.
    """

    def __init__(
        self,
        groups: Sequence[str],
        count: int,
        lease_size: int = 5,
        part_size: int = 5,
        max_attempts: int = 1000,
        breaks: Sequence[int] = (),
    ) -> None:
        super().__init__()
        self.groups = {name: Group(name, list(range(count))) for name in groups}
        self.lease_size = lease_size
        self.part_size = part_size
        self.max_attempts = max_attempts
        self.dead_letters: list[tuple[str, int]] = []
        self.refused: list[str] = []
        self.acked: set[str] = set()
        self.breaks = list(breaks)
        self.overdrawn = False

    @property
    def done(self) -> bool:
        return not any(group.left for group in self.groups.values())

    async def _read(self, session: ConsumeSession, requests: Any) -> None:
        left = self.breaks.pop(0) if self.breaks else None
        async for request in requests:
            kind = request.WhichOneof("event")
            session.requests.append(request)
            if kind == "subscribe":
                session.subscribe = request.subscribe
                subscribed = pb.Subscribed(broker_id="fifo", client_id=request.subscribe.client_id)
                subscribed.lease_duration.FromSeconds(30)
                session.outgoing.put_nowait(pb.ConsumeResponse(subscribed=subscribed))
            elif kind == "credits":
                session.credits += request.credits.messages
            else:
                outcome = self._settle(request, kind)
                if left is not None and kind != "extend":
                    left -= 1
                    if left <= 0:
                        break
                session.outgoing.put_nowait(pb.ConsumeResponse(outcome=outcome))
            for group in self.groups.values():
                self._deliver(session, group)
            await self.changed()
        session.end()
        await self.changed()

    def _deliver(self, session: ConsumeSession, group: Group) -> None:
        if group.out or not group.left or session.credits <= 0:
            return
        group.out = group.left[: min(self.lease_size, session.credits)]
        group.token += 1
        group.attempts[group.out[0]] = group.attempts.get(group.out[0], 0) + 1
        for start in range(0, len(group.out), self.part_size):
            batch = pb.DeliveryBatch()
            for offset in group.out[start : start + self.part_size]:
                message = message_pb2.LogMessage(
                    topic="orders",
                    offset=offset,
                    body=b"x",
                    message_group=group.name,
                    message_id=f"{group.name}{offset}",
                )
                attempt = group.attempts[offset] if offset == group.out[0] else 1
                batch.deliveries.add(message=message, receipt_handle=group.handle(offset), attempt=attempt)
            session.credits -= len(batch.deliveries)
            self.overdrawn = self.overdrawn or session.credits < 0
            session.outgoing.put_nowait(pb.ConsumeResponse(deliveries=batch))

    def _settle(self, request: pb.ConsumeRequest, kind: str | None) -> pb.ReceiptOutcome:
        event = getattr(request, kind or "")
        outcome = pb.ReceiptOutcome(request_id=request.request_id)
        for one in event.receipt_handles:
            result = outcome.results.add(receipt_handle=one)
            name, _, number = one.rpartition(".")[0].rpartition(".")[0], *one.split(".")[-2:]
            group, offset = self.groups[name], int(number, 16)
            if one in self.acked:
                continue
            if one != group.handle(offset) or offset not in group.out:
                if kind != "extend":
                    self.refused.append(f"{kind} {one}")
                code = grpc.StatusCode.FAILED_PRECONDITION.value[0]
                result.error.CopyFrom(message_pb2.ItemError(code=code, reason="RECEIPT_STALE", message="stale"))
            elif kind == "ack":
                self.acked.add(one)
                self._finish(group, offset)
            elif kind == "nack":
                self._take_back(group, offset, event.untried, result)
        return outcome

    def _finish(self, group: Group, offset: int) -> None:
        group.out.remove(offset)
        group.left.remove(offset)
        if group.out:
            group.attempts.setdefault(group.out[0], 1)

    def _take_back(self, group: Group, offset: int, untried: bool, result: pb.ReceiptResult) -> None:
        head = group.out[0]
        if not untried and offset == head and group.attempts[head] >= self.max_attempts:
            self.dead_letters.append((group.name, offset))
            result.dead_letter.CopyFrom(message_pb2.LogPosition(topic="%DLQ%g", offset=len(self.dead_letters)))
            self._finish(group, offset)
            return
        if untried:
            group.attempts[head] -= 1
        group.out = []
        group.token += 1
