"""The client processes of `halfmq bench transactions`: a closed loop of producers, and a consumer.

Run as `python -m broker.cli.bench.client producer|consumer ...`. Each says when it is ready and then answers every line
on its standard input with one line of JSON. The producer is told how many seconds to work, the consumer how many
messages there are since it began. Bodies begin with the send time (8 bytes, nanoseconds of the machine's monotonic
clock, which its processes share).
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import sys
import time

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from broker.cli.bench.load import GROUP, TOPIC, body_of
from consumer_sdk import AsyncConsumer
from producer_sdk import AsyncTransactionProducer, Message

RECEIVE = 512
EMPTY_CALLS = 50


async def produce(endpoint: str, in_flight: int, size: int) -> None:
    """Prepares and commits transactions, `in_flight` at a time, for as many seconds as each line says."""
    filler = body_of(size)
    async with (
        AsyncTransactionProducer(endpoint, GROUP) as producer,
        grpc.aio.insecure_channel(endpoint) as channel,
    ):
        health = health_pb2_grpc.HealthStub(channel)

        async def two_calls() -> float:
            start = time.monotonic_ns()
            for _ in range(2):
                await health.Check(health_pb2.HealthCheckRequest())
            return (time.monotonic_ns() - start) / 1e6

        async def one() -> float:
            start = time.monotonic_ns()
            message = Message(TOPIC, start.to_bytes(8, "big") + filler)
            prepared = await producer.prepare(message)
            await producer.commit(prepared.transaction_id)
            return (time.monotonic_ns() - start) / 1e6

        async def loop(until: float, times: list[float]) -> None:
            while time.monotonic() < until:
                times.append(await one())

        _say("ready")
        while line := await asyncio.to_thread(sys.stdin.readline):
            times: list[float] = []
            start = time.monotonic()
            until = start + float(line)
            await asyncio.gather(*[loop(until, times) for _ in range(in_flight)])
            calls = [await two_calls() for _ in range(EMPTY_CALLS)]
            figures = {"transactions": len(times), "started": start, "commit_ms": times, "two_calls_ms": calls}
            _say(json.dumps(figures))


async def consume(endpoint: str) -> None:
    """Receives and acknowledges; answers when it has seen as many messages as each line says."""
    loop = asyncio.get_running_loop()
    seen = 0
    latencies: list[float] = []
    ended = 0.0
    async with AsyncConsumer(endpoint, GROUP, [TOPIC], prefetch=4 * RECEIVE) as consumer:
        _say("ready")
        told = loop.run_in_executor(None, sys.stdin.readline)
        while True:
            messages = await consumer.receive(RECEIVE, timeout=0.2)
            if messages:
                await consumer.ack(messages)
                now = time.monotonic_ns()
                ended = now / 1e9
                latencies.extend([(now - int.from_bytes(m.body[:8], "big")) / 1e6 for m in messages])
                seen += len(messages)
            if told.done():
                if not (line := told.result()):
                    return
                if seen >= int(line):
                    _say(json.dumps({"consumed": seen, "ended": ended, "latency_ms": latencies}))
                    latencies = []
                    told = loop.run_in_executor(None, sys.stdin.readline)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    """Runs one client."""
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=["producer", "consumer"])
    parser.add_argument("endpoint")
    parser.add_argument("--in-flight", type=int, default=256)
    parser.add_argument("--size", type=int, default=1024)
    options = parser.parse_args()
    gc.freeze()  # As any busy service may do once it is loaded; see docs/sdk.md.
    gc.set_threshold(50_000, 50, 100)
    if options.role == "producer":
        asyncio.run(produce(options.endpoint, options.in_flight, options.size))
    else:
        asyncio.run(consume(options.endpoint))


if __name__ == "__main__":
    main()
