"""What the SDKs for producers and consumers share: connections, errors, messages, filters, batches, operators' calls.

Applications import `producer_sdk` and `consumer_sdk`, which offer what is public of it.
"""

from __future__ import annotations

import os

# Before gRPC is loaded. While a thread is in a call, its handling of forks kills some children that are forked to run
# another program, as PySpark does for its JVM; and asyncio's clients, which these are, gain nothing by it.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
