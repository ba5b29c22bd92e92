"""`halfmq bridge` without the broker's packages."""

import importlib.util
import subprocess

assert importlib.util.find_spec("sqlalchemy") is None
for command in ("kafka", "from-kafka", "forget"):
    ran = subprocess.run(["halfmq", "bridge", command, "--help"], check=False, capture_output=True, text=True)
    assert ran.returncode == 0, ran
print("halfmq bridge starts")
