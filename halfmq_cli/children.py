"""Environment of processes that commands start."""

from __future__ import annotations

import os


def environment(**settings: str) -> dict[str, str]:
    """The environment of a child: without the user's HALFMQ_ settings, which are for the user's own brokers.

    Args:
        settings: HALFMQ_ variables for the child. Arguments can be seen by other users of the machine; these cannot.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HALFMQ_")}
    return {**kept, **settings}
