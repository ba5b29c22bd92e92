"""`halfmq pipeline` without the broker's packages."""

import importlib.util
import subprocess

assert importlib.util.find_spec("sqlalchemy") is None
for command in ("archive", "compact", "replay", "aggregate", "reconcile", "transactions"):
    ran = subprocess.run(["halfmq", "pipeline", command, "--help"], check=False, capture_output=True, text=True)
    assert ran.returncode == 0, ran
print("halfmq pipeline starts")
