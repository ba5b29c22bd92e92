"""The fence, the outbox and applied messages on a database of one's own, and `halfmq relay` without the broker."""

import importlib.util
import subprocess

from sqlalchemy import create_engine, inspect

from consumer_sdk.applied import AppliedMessages
from producer_sdk.fence import TransactionFence
from producer_sdk.outbox import Outbox

assert importlib.util.find_spec("alembic") is None
engine = create_engine("sqlite:///shop.db")
for made in (TransactionFence(engine), Outbox(engine), AppliedMessages(engine, "payments")):
    made.create_tables()
command = ["halfmq", "relay", "--database=sqlite:///shop.db", "--status"]
ran = subprocess.run(command, check=False, capture_output=True, text=True)
assert ran.returncode == 0, ran
print(f"tables {', '.join(sorted(inspect(engine).get_table_names()))} were made")
