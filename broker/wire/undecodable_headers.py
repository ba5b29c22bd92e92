"""gRPC's log lines of header values that are not UTF-8.

It logs each one as an error, twice, with the value and a traceback: whoever reaches the port could fill the disk, and a
token that has one wrong byte beside it would be in the log.
"""

from __future__ import annotations

import logging

from broker.wire.throttled_log import ThrottledLog

_of_clients = ThrottledLog(logging.getLogger("halfmq.api"))
_GRPC = logging.getLogger("grpc._cython.cygrpc")
_TEXT = "Invalid encoding on"


class _Undecodable(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        """Drops such a line; one of our own stands for those of a minute."""
        if not str(record.msg).startswith(_TEXT):
            return True
        _of_clients.info("a call has a header that is not UTF-8")
        return False


_undecodable = _Undecodable()


def set_up() -> None:
    """Leaves them out of the log."""
    _GRPC.addFilter(_undecodable)  # Once, however often it is called.
