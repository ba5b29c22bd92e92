"""Where messages are: in a queue, waiting for their time, or recalled."""

from __future__ import annotations

from typing import TypeAlias

Queue: TypeAlias = tuple[int, int]
"""Topic id and queue id."""


Place: TypeAlias = tuple[int, ...]
"""Where a message is, as an op record tells it.

In the log: queue id and offset. Else SCHEDULED, the time that it waits for, and the id of its topic; or RECALLED, the
time of that, the id of its topic, and the time that it waited for.
"""


SCHEDULED, RECALLED = 0, -1
