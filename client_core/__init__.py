"""Shared by the producer and consumer SDKs: connections, errors, messages, filters, batching, administration.

Applications import `producer_sdk` and `consumer_sdk`, which re-export its public names.
"""

from __future__ import annotations

import os

# Set before gRPC is imported. While a thread is in a call, its fork support kills some children that are forked to run
# another program, as PySpark does for its JVM; and asyncio clients, which these are, do not need it.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
