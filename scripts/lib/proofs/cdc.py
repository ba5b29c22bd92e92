"""`halfmq cdc` without the broker's packages."""

import importlib.util
import subprocess

assert importlib.util.find_spec("sqlalchemy") is None
ran = subprocess.run(["halfmq", "cdc", "--help"], check=False, capture_output=True, text=True)
assert ran.returncode == 0, ran
print("halfmq cdc starts")
