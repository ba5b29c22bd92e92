"""A consumer as a process of its own, which does what it is told, message by message.

    python -m faults.working_consumer ENDPOINT GROUP TOPIC LEASE COUNT

It takes COUNT messages and writes "holds" and their bodies as a line. For every line of input ("ack BODY", "nack BODY",
"extend BODY", "take") it writes a line: "ok", or the refusal's reason and text; for "take" what it holds then.
"""

from __future__ import annotations

import sys

from faults.client import Client
from halfmq.v1 import consumer_pb2


def taken(client: Client, group: str, topic: str, lease: float, count: int) -> list[consumer_pb2.Delivery]:
    """As many messages, in as many pulls as it takes."""
    held: list[consumer_pb2.Delivery] = []
    while len(held) < count:
        held += client.pull(group, topic, count - len(held), wait=20, lease=lease)
    return held


def main() -> None:
    endpoint, group, topic, lease, count = sys.argv[1:]
    with Client(endpoint) as client:
        held: dict[str, str] = {}
        word = "take"
        while word:
            if word == "take":
                deliveries = taken(client, group, topic, float(lease), int(count))
                held = {each.message.body.decode(): each.receipt_handle for each in deliveries}
                print("holds", *held, flush=True)
            else:
                what, body = word.split()
                handles = [held[body]]
                if what == "ack":
                    (result,) = client.ack(handles)
                elif what == "nack":
                    (result,) = client.nack(handles, "not now")
                else:
                    (result,) = client.extend(handles, float(lease))
                print(f"{result.error.reason} {result.error.message}" if result.HasField("error") else "ok", flush=True)
            word = sys.stdin.readline().strip()


if __name__ == "__main__":
    main()
