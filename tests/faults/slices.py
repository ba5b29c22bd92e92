"""Which operations brokers are killed at, and on which database, when there is no time for all on all."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from faults.delivery_operations import DELIVERY_OPERATIONS
from faults.lease_operations import LEASE_OPERATIONS
from faults.name_operations import NAME_OPERATIONS
from faults.operations import OPERATIONS
from faults.resolution_operations import RESOLUTION_OPERATIONS
from support.databases import KINDS

if TYPE_CHECKING:
    from collections.abc import Mapping

FURTHER = (*LEASE_OPERATIONS, *NAME_OPERATIONS, *RESOLUTION_OPERATIONS, *DELIVERY_OPERATIONS)
KILLED = (*OPERATIONS, *FURTHER)


def left_out(parameters: Mapping[str, object]) -> bool:
    """Whether a test with these parameters waits for HALFMQ_FAULT_ALL.

    Each further operation is killed before the COMMIT on one database and after it on the other.
    """
    operation = parameters.get("operation_type")
    if os.environ.get("HALFMQ_FAULT_ALL") or operation not in FURTHER:
        return False
    turn = FURTHER.index(operation) + (parameters["when"] == "after")
    return KINDS[turn % len(KINDS)] != parameters["kind"]
