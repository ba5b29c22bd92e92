"""A broker on SQLite, as the image runs it: its user, its variables, its health check; a message through it."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from consumer_sdk import Consumer
from producer_sdk import Admin, Producer

dockerfile = Path(sys.argv[1]).read_text().replace("\\\n", " ")
user = int(re.search(r"^USER (\d+)", dockerfile, re.M)[1])
check = json.loads(re.search(r"^HEALTHCHECK .*CMD (\[.*\])", dockerfile, re.M)[1])
folder = Path("data")
folder.mkdir()
drop = {}
if os.geteuid() == 0:
    os.chown(folder, user, user)
    drop = {"user": user, "group": user, "extra_groups": []}
variables = {**os.environ, "HALFMQ_DATABASE": "sqlite:///halfmq.db", "HALFMQ_LISTEN": "127.0.0.1:0", "HOME": "/nowhere"}

for command in ("serve", "migrate", "health", "demo", "access grant", "bench send"):
    subprocess.run(["halfmq", *command.split(), "--help"], check=True, stdout=subprocess.DEVNULL)
with subprocess.Popen(
    ["halfmq", "serve"], cwd=folder, env=variables, stdout=subprocess.PIPE, text=True, **drop
) as broker:
    endpoint = broker.stdout.readline().strip()
    for asked in (check, [*check, "--ready"]):
        subprocess.run(asked, check=True, env={**variables, "HALFMQ_ENDPOINT": endpoint}, stdout=subprocess.DEVNULL)
    with Admin(endpoint) as admin:
        admin.create_topic("orders")
        admin.create_group("readers")
    with Producer(endpoint) as producer:
        producer.send("orders", "one")
    with Consumer(endpoint, "readers", "orders") as consumer:
        message = next(iter(consumer))
        message.ack()
    assert message.text == "one"
    broker.send_signal(signal.SIGTERM)
assert broker.returncode == 0
print(f"a broker served and drained as user {user if drop else os.geteuid()}")
