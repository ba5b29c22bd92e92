"""The settings of a server that decide what survives a crash."""

from __future__ import annotations

from typing import Any

from broker.storage.engine.cluster.role import rows
from broker.storage.engine.unsuitable import Unsuitable

SMALLEST_PACKET = 16 * 1024 * 1024
"""Bytes; statements grow to 12 MiB."""
BESIDE_A_BODY = 1024 * 1024


def unsafe_settings(connection: Any, largest_body: int) -> tuple[list[Unsuitable], list[Unsuitable]]:
    """Settings under which acknowledged commits could be lost, and those that are allowed but not recommended.

    Args:
        connection: of the driver.
        largest_body: bytes of the largest allowed body.
    """
    flush, log_bin, sync_binlog, packet, doublewrite = rows(
        connection,
        "SELECT @@GLOBAL.innodb_flush_log_at_trx_commit, @@GLOBAL.log_bin, @@GLOBAL.sync_binlog,"
        " @@GLOBAL.max_allowed_packet, @@GLOBAL.innodb_doublewrite",
    )[0]
    unsafe, warnings = [], []
    if int(flush) != 1:
        unsafe.append(
            Unsuitable(
                f"innodb_flush_log_at_trx_commit is {flush}: acknowledged commits would be lost with the machine",
                "set it to 1 (SET GLOBAL innodb_flush_log_at_trx_commit = 1, and in my.cnf)",
            )
        )
    if int(log_bin) and int(sync_binlog) != 1:
        warnings.append(
            Unsuitable(
                f"sync_binlog is {sync_binlog} while a binary log is kept: after a crash replicas may lack acknowledged"
                " commits",
                "set it to 1 (SET GLOBAL sync_binlog = 1, and in my.cnf)",
            )
        )
    # A byte of a body takes two in a statement.
    needed = max(SMALLEST_PACKET, 2 * largest_body + BESIDE_A_BODY)
    if int(packet) < needed:
        unsafe.append(
            Unsuitable(
                f"max_allowed_packet is {packet}: messages of {largest_body} bytes (max_body_bytes) would not fit",
                f"set it to {needed} or more (SET GLOBAL max_allowed_packet = {needed}, and in my.cnf), or allow"
                " smaller bodies",
            )
        )
    if str(doublewrite).upper() in {"0", "OFF"}:
        warnings.append(
            Unsuitable(
                "innodb_doublewrite is off: a torn page after a power failure would damage tables",
                "set it to ON in my.cnf, and restart the server",
            )
        )
    return unsafe, warnings
