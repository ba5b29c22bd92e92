"""Who waits for a lock on a database server, as it is now.

Not by information_schema.innodb_trx: the server renews that only when nobody has read it for a while, so tests that
look at it again and again at the same time see one moment for ever.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.storage.engine.session import Session


def waiting_transactions(session: Session) -> int:
    """How many transactions wait for a lock in the database that this session is connected to."""
    ((version,),) = session.fetch("SELECT VERSION()")
    if "MariaDB" not in version:
        # MySQL's status leaves out who has written nothing yet, and waits to read a row.
        ((waiting_here,),) = session.fetch(
            "SELECT COUNT(DISTINCT thread_id) FROM performance_schema.data_locks"
            " WHERE lock_status = 'WAITING' AND object_schema = DATABASE()"
        )
        return int(waiting_here)
    ((_, _, status),) = session.fetch("SHOW ENGINE INNODB STATUS")
    waiting = {
        int(found[1])
        for each in status.split("---TRANSACTION ")
        if "LOCK WAIT" in each and (found := re.search(r" thread id (\d+),", each))
    }
    own = session.fetch("SELECT id FROM information_schema.processlist WHERE db = DATABASE()")
    return len(waiting & {row[0] for row in own})
