"""Many requests to all RPCs of both protocols at once, and what they were answered with."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from broker.rocketmq.protocol import service_pb2
from fuzz.anything import Anything
from halfmq.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    consumer_pb2,
    producer_pb2,
    query_pb2,
    sink_pb2,
    transaction_pb2,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

WORKERS = 32
CHANNELS = 4
ANSWER = 60.0
"""Seconds after which a call that is no stream hangs."""
STREAM = 0.1
"""Seconds that a stream is listened to."""
RENEWED = 300
"""Requests after which the good topics and groups are made again: others delete them."""
IDS = [str(uuid.UUID(int=0x7000_8000_0000_0000_0000 + number)) for number in range(2000)]
"""Identities: as many as there may be at a time, so that requests meet those that others made."""
SERVICES = [
    descriptor
    for module in (
        transaction_pb2,
        producer_pb2,
        consumer_pb2,
        admin_pb2,
        query_pb2,
        sink_pb2,
        service_pb2,
        health_pb2,
        reflection_pb2,
    )
    for descriptor in module.DESCRIPTOR.services_by_name.values()
]
NOT_HEARD = "Internal error from Core"
"""What this client says of a stream that ended while it was written to; how it ended is lost."""
# What answers within a healthy broker are never: faults of the broker, not of the request.
FAULTS = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DATA_LOSS, grpc.StatusCode.UNAVAILABLE}
ITEM_FAULTS = {code.value[0] for code in FAULTS}
ROCKETMQ_FAULTS = {0, 50_000, 50_001}


@dataclass
class Found:
    """What came of a campaign.

    Attributes:
        answers: how often each RPC answered with each code.
        statuses: how often each RPC of RocketMQ's protocol answered with each status.
        faults: answers that no request may get; the first ones whole, with the request.
    """

    answers: Counter[tuple[str, str]] = field(default_factory=Counter)
    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    fault_count: int = 0
    seconds: float = 0.0

    @property
    def requests(self) -> int:
        return sum(self.answers.values())

    def table(self) -> str:
        """Answers by RPC, for people."""
        by_method: dict[str, list[str]] = {}
        for (method, code), count in sorted(self.answers.items()):
            by_method.setdefault(method, []).append(f"{code} {count:,}")
        for (method, status), count in sorted(self.statuses.items()):
            by_method[method].append(f"{status}: {count:,}")
        lines = [f"{method:60} {', '.join(codes)}" for method, codes in by_method.items()]
        rate = self.requests / self.seconds if self.seconds else 0
        return "\n".join([*lines, f"{self.requests:,} requests in {self.seconds:.0f} s, {rate:,.0f} a second"])

    def note_fault(self, method: str, what: str, sent: list[bytes]) -> None:
        self.fault_count += 1
        if len(self.faults) < 20:
            shown = " ".join(raw[:300].hex() for raw in sent[:3])
            self.faults.append(f"{method}: {what}\n    sent {shown}")


async def run(endpoint: str, requests: int, seed: int) -> Found:
    """Sends so many requests to a broker, some dozens at a time."""
    found = Found()
    left = iter(range(requests))
    began = time.monotonic()
    async with contextlib.AsyncExitStack() as stack:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
        channels = [
            await stack.enter_async_context(grpc.aio.insecure_channel(endpoint, options=options))
            for _ in range(CHANNELS)
        ]
        await asyncio.gather(
            *(
                _Worker(channels[number % CHANNELS], Random(seed * 1_000_003 + number), found).work(left)
                for number in range(WORKERS)
            )
        )
    found.seconds = time.monotonic() - began
    return found


class _Worker:
    def __init__(self, channel: grpc.aio.Channel, random: Random, found: Found) -> None:
        self._channel = channel
        self._random = random
        self._found = found
        good = {
            "topic": [f"fuzz-{number}" for number in range(6)] + ["%DLQ%fuzz-g0"],
            "group": [f"fuzz-g{number}" for number in range(4)],
            "transaction_id": IDS,
            "message_id": [*IDS, *(f"{each}.1" for each in IDS), *[""] * len(IDS)],
            "attempt_id": IDS[:4],
            "dedup_key": ["d1", "d2", ""],
            "reason": ["because"],
            "operator": ["me"],
            "consumer_group": [f"fuzz-g{number}" for number in range(4)],
            "producer_group": [f"fuzz-p{number}" for number in range(4)],
            "name": [f"fuzz-{number}" for number in range(6)] + [f"fuzz-g{number}" for number in range(4)],
            "sink": ["fuzz-s0", "fuzz-s1"],
            "query_id": ["fuzz-q0", "fuzz-q1"],
            "client_id": ["fuzz-c0", "fuzz-c1"],
            "tag": ["a", "b", ""],
            "keys": ["k1", "k2"],
            "message_group": ["m1", "m2", ""],
            "page_token": [""],
            "topic_id": [""],
            "first_position": [0],
            "min_offset": [0],
            "max_messages": [0, 1, 10],
            "page_size": [0, 1, 100],
            "queue": [0, 0, 1, 2],
            "offset": [0, 1, 5],
            "epoch": [0, 1, 2],
            "check_number": [1, 2],
            "service": ["", "halfmq.v1.AdminService", "nothing"],
            "file_containing_symbol": ["halfmq.v1.AdminService", "nothing"],
            "expression": ["*", "a || b", "n > 1", "TAGS = 'a'"],
        }
        self._anything = Anything(random, good)
        self._methods = [method for service in SERVICES for method in service.methods]

    async def work(self, left: Any) -> None:
        for number in left:
            if number % RENEWED == 0:
                await self._renew()
            await self._one(self._random.choice(self._methods))

    async def _renew(self) -> None:
        admin = admin_pb2_grpc.AdminServiceStub(self._channel)
        for number in range(6):
            with contextlib.suppress(grpc.aio.AioRpcError):
                await admin.CreateTopic(
                    admin_pb2.CreateTopicRequest(topic=admin_pb2.Topic(name=f"fuzz-{number}", queue_count=3))
                )
        for number in range(4):
            with contextlib.suppress(grpc.aio.AioRpcError):
                await admin.CreateGroup(
                    admin_pb2.CreateGroupRequest(group=admin_pb2.ConsumerGroup(name=f"fuzz-g{number}"))
                )

    async def _one(self, method: Any) -> None:
        name = f"{method.containing_service.full_name}/{method.name}"
        count = self._random.choice([0, 1, 1, 2, 4]) if method.client_streaming else 1
        first = bool(method.client_streaming)
        sent = [self._anything.request(method.input_type, first=first and not number) for number in range(count)]
        code, details = grpc.StatusCode.OK, ""
        streams = method.client_streaming or method.server_streaming
        try:
            async with asyncio.timeout(ANSWER):
                async for response in self._responses(method, name, sent):
                    self._look_at(name, response, sent)
        except grpc.aio.AioRpcError as error:
            code, details = error.code(), error.details() or ""
            if details == NOT_HEARD:
                self._found.answers[name, "NOT_HEARD"] += 1
                return
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # The same, when the end of what is written cannot be written either.
            self._found.answers[name, "NOT_HEARD"] += 1
            return
        except TimeoutError:
            self._found.note_fault(name, f"no answer within {ANSWER:g} s", sent)
        self._found.answers[name, code.name] += 1
        if code in FAULTS or (code is grpc.StatusCode.DEADLINE_EXCEEDED and not streams):
            self._found.note_fault(name, f"{code.name} {details}", sent)

    async def _responses(self, method: Any, name: str, sent: list[bytes]) -> AsyncIterator[Any]:
        read = GetMessageClass(method.output_type).FromString
        path = f"/{name}"
        metadata = self._metadata() if method.containing_service.file.package == "apache.rocketmq.v2" else ()
        if not method.client_streaming and not method.server_streaming:
            yield await self._channel.unary_unary(path, None, read)(sent[0], timeout=ANSWER, metadata=metadata)
            return
        if not method.client_streaming:
            async for response in self._channel.unary_stream(path, None, read)(
                sent[0], timeout=STREAM, metadata=metadata
            ):
                yield response
            return
        lasting = 0 if self._random.random() < 0.7 else STREAM

        async def requests() -> AsyncIterator[bytes]:
            for raw in sent:
                yield raw
            await asyncio.sleep(lasting)

        call = self._channel.stream_stream(path, None, read)
        async for response in call(requests(), timeout=STREAM, metadata=metadata):
            yield response

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        """What RocketMQ's clients say beside a request."""
        odd = ("", "x" * 300, "a|b", "%DLQ%", "-1", "~!")
        headers = {
            "x-mq-client-id": self._random.choice(["fuzz-c0", "fuzz-c1", "fuzz-c2"]),
            "x-mq-namespace": "",
            "x-mq-language": "JAVA",
            "x-mq-client-version": "5.0.8",
            "x-mq-protocol": "v2",
        }
        if self._random.random() < 0.05:
            headers[self._random.choice(list(headers))] = self._random.choice(odd)
        return tuple(headers.items())

    def _look_at(self, name: str, response: Any, sent: list[bytes]) -> None:
        for fault in faults_in(response):
            self._found.note_fault(name, fault, sent)
        status = response.DESCRIPTOR.fields_by_name.get("status")
        if status is not None and status.message_type is not None and response.HasField("status"):
            self._found.statuses[name, response.status.code] += 1
        if self._random.random() < 0.3:
            self._anything.remember(response)


def faults_in(response: Any) -> list[str]:
    """Faults that an answer tells of single items."""
    descriptor = response.DESCRIPTOR
    if not _tells_of_items(descriptor):
        return []
    if descriptor.full_name == "halfmq.v1.ItemError":
        return [f"item {response}"] if response.code in ITEM_FAULTS else []
    if descriptor.full_name == "apache.rocketmq.v2.Status":
        return [f"status {response}"] if response.code in ROCKETMQ_FAULTS else []
    found = []
    for inner, value in response.ListFields():
        if inner.message_type is not None and not inner.message_type.GetOptions().map_entry:
            for each in value if inner.is_repeated else [value]:
                found += faults_in(each)
    return found


@cache
def _tells_of_items(descriptor: Any) -> bool:
    return _leads_to_items(descriptor, frozenset())


def _leads_to_items(descriptor: Any, passed: frozenset[str]) -> bool:
    if descriptor.full_name in {"halfmq.v1.ItemError", "apache.rocketmq.v2.Status"}:
        return True
    return any(
        field.message_type is not None
        and field.message_type.full_name not in passed
        and _leads_to_items(field.message_type, passed | {descriptor.full_name})
        for field in descriptor.fields
    )
