"""`halfmq cdc` without the broker's packages, as far as a server that does not answer."""

import importlib.util
import subprocess
from pathlib import Path

from pymysql import _auth

assert importlib.util.find_spec("sqlalchemy") is None
assert _auth._have_cryptography, "MySQL's log-ins need it"
Path("shop.toml").write_text(
    """
name = "shop"
[broker]
endpoint = "127.0.0.1:1"
[database]
hosts = ["127.0.0.1:1"]
user = "cdc"
server_id = 4711
[[table]]
match = "shop.orders"
topic = "orders"
"""
)
ran = subprocess.run(["halfmq", "cdc", "--check", "shop.toml"], check=False, capture_output=True, text=True)
assert ran.returncode == 1, ran
assert "127.0.0.1:1 cannot be reached: Can't connect to MySQL server" in ran.stderr, ran
print("halfmq cdc calls a server")
