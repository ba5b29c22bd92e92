"""`halfmq bridge` without the broker's packages, as far as a Kafka that does not answer."""

import importlib.util
import signal
import subprocess
import threading

assert importlib.util.find_spec("sqlalchemy") is None
for command in ("kafka", "from-kafka", "forget"):
    ran = subprocess.run(["halfmq", "bridge", command, "--help"], check=False, capture_output=True, text=True)
    assert ran.returncode == 0, ran
nowhere = ["--bootstrap-servers", "127.0.0.1:1", "--endpoint", "127.0.0.1:1"]
with subprocess.Popen(
    ["halfmq", "bridge", "from-kafka", "--name", "proof", "--topic", "orders", *nowhere],
    stderr=subprocess.PIPE,
    text=True,
) as bridge:
    # It tries again until it is ended.
    limit = threading.Timer(60, bridge.kill)
    limit.start()
    lines = []
    while not lines or (lines[-1] and "Kafka does not answer" not in lines[-1]):
        lines.append(bridge.stderr.readline())
    bridge.send_signal(signal.SIGTERM)
    bridge.wait()
    limit.cancel()
assert "Broker transport failure" in lines[-1], lines
assert bridge.returncode == 0, (bridge.returncode, lines)
print("halfmq bridge calls Kafka")
