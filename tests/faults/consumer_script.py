"""A consumer as a process of its own: pulls one message, tells of it, and acknowledges when it is told to.

    python consumer_script.py ENDPOINT GROUP TOPIC LEASE

Writes the body of its message as a line; on a line of input it acknowledges and writes "ok" or the refusal's reason.
"""

from __future__ import annotations

import sys

from faults.client import Client

if __name__ == "__main__":
    endpoint, group, topic, lease = sys.argv[1:]
    with Client(endpoint) as client:
        (delivery,) = client.pull(group, topic, 1, wait=20, lease=float(lease))
        print(delivery.message.body.decode(), flush=True)
        sys.stdin.readline()
        (result,) = client.ack([delivery.receipt_handle])
        print(result.error.reason or "ok", flush=True)
