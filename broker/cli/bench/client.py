"""The client processes of `halfmq bench transactions`: a closed loop of producers, and a consumer.

Run as `python -m broker.cli.bench.client producer|consumer ...`; each prints one JSON line when it is done.
Bodies begin with the send time (8 bytes, nanoseconds of the machine's monotonic clock, which its processes share).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time

from broker.cli.bench.load import GROUP, TOPIC, body_of
from consumer_sdk import AsyncConsumer
from producer_sdk import AsyncTransactionProducer, Message

RECEIVE = 512


async def produce(endpoint: str, in_flight: int, size: int, seconds: float) -> dict[str, object]:
    """Prepares and commits transactions, `in_flight` at a time, for some seconds."""
    filler = body_of(size)
    commit_times: list[float] = []
    async with AsyncTransactionProducer(endpoint, GROUP) as producer:

        async def one() -> None:
            start = time.monotonic_ns()
            message = Message(TOPIC, start.to_bytes(8, "big") + filler)
            prepared = await producer.prepare(message)
            await producer.commit(prepared.transaction_id)
            commit_times.append((time.monotonic_ns() - start) / 1e6)

        async def loop(until: float) -> None:
            while time.monotonic() < until:
                await one()

        await one()
        commit_times.clear()
        start = time.monotonic()
        await asyncio.gather(*[loop(start + seconds) for _ in range(in_flight)])
        return {"transactions": len(commit_times) + 1, "commit_ms": sorted(commit_times), "started": start}


async def consume(endpoint: str) -> dict[str, object]:
    """Receives and acknowledges; told on standard input how many messages to expect in all."""
    loop = asyncio.get_running_loop()
    expected = loop.run_in_executor(None, sys.stdin.readline)
    latencies: list[float] = []
    ended = 0.0
    async with AsyncConsumer(endpoint, GROUP, [TOPIC], prefetch=4 * RECEIVE) as consumer:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while not expected.done() or len(latencies) < int(expected.result()):
            messages = await consumer.receive(RECEIVE, timeout=0.2)
            if not messages:
                continue
            await consumer.ack(messages)
            now = time.monotonic_ns()
            ended = now / 1e9
            latencies.extend([(now - int.from_bytes(m.body[:8], "big")) / 1e6 for m in messages])
    return {"consumed": len(latencies), "latency_ms": sorted(latencies), "ended": ended}


def main() -> None:
    """Runs one client."""
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=["producer", "consumer"])
    parser.add_argument("endpoint")
    parser.add_argument("--in-flight", type=int, default=256)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--seconds", type=float, default=10)
    options = parser.parse_args()
    if options.role == "producer":
        result = asyncio.run(produce(options.endpoint, options.in_flight, options.size, options.seconds))
    else:
        result = asyncio.run(consume(options.endpoint))
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
