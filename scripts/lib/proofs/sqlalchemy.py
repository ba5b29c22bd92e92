"""The fence, the outbox and applied messages on a database of one's own."""

from sqlalchemy import create_engine, inspect

from consumer_sdk.applied import AppliedMessages
from producer_sdk.fence import TransactionFence
from producer_sdk.outbox import Outbox

engine = create_engine("sqlite:///shop.db")
for made in (TransactionFence(engine), Outbox(engine), AppliedMessages(engine, "payments")):
    made.create_tables()
print(f"tables {', '.join(sorted(inspect(engine).get_table_names()))} were made")
