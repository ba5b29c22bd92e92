"""`python -m halfmq_cli.worker`: one of several brokers that share an address; see workers.py.

Reads its settings, as a line of JSON, from standard input, and ends when that ends. Its address is a line on standard
output, and empty lines after it tell that it lives.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys

if __name__ == "__main__":
    # A terminal sends it to all processes; the parent tells when to end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")

    from broker.config import BrokerConfig
    from broker.errors import BrokerError
    from halfmq_cli import logs
    from halfmq_cli.serving import REFUSED, fail, run_broker, shown

    given = json.loads(sys.stdin.buffer.readline())
    config = BrokerConfig(**given["settings"])
    logs.set_up(config.log_format, config.log_level, worker=given["number"])
    try:
        run_broker(config, parent=sys.stdin.fileno())
    except BrokerError as error:
        if not given["replaces"]:
            fail(error)
        logging.getLogger("halfmq.workers").error("%s", shown(error))
        raise SystemExit(REFUSED) from None
