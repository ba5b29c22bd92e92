"""`python -m halfmq_cli.worker`: one of several brokers that share an address; see workers.py.

Reads its settings, as a line of JSON, from standard input, and ends when that ends.
"""

from __future__ import annotations

import json
import os
import sys

if __name__ == "__main__":
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")

    from broker.config import BrokerConfig
    from broker.errors import BrokerError
    from halfmq_cli import logs
    from halfmq_cli.serving import fail, run_broker

    config = BrokerConfig(**json.loads(sys.stdin.buffer.readline()))
    logs.set_up(config.log_format, config.log_level)
    try:
        run_broker(config, parent=sys.stdin.fileno())
    except BrokerError as error:
        fail(error)
