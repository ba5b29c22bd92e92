"""A broker that speaks RocketMQ's protocol, and RocketMQ's official client beside it."""

import os
import signal
import subprocess

import rocketmq  # noqa: F401 - the official client

variables = {**os.environ, "HALFMQ_DATABASE": "sqlite:///halfmq.db", "HALFMQ_LISTEN": "127.0.0.1:0"}
with subprocess.Popen(["halfmq", "serve", "--rocketmq"], env=variables, stdout=subprocess.PIPE, text=True) as broker:
    endpoint = broker.stdout.readline().strip()
    ready = subprocess.run(
        ["halfmq", "health", "--ready", "--endpoint", endpoint], check=False, capture_output=True, text=True
    )
    broker.send_signal(signal.SIGTERM)
assert ready.returncode == 0, ready
assert broker.returncode == 0
print("a broker served RocketMQ's protocol")
