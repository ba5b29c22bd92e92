"""Where servers list their sessions."""

from __future__ import annotations


def processlist(version: str) -> str:
    """The table of sessions of a server of this version.

    MySQL's information schema converts every session's statement to three-byte UTF-8, and fails for all of them where
    one has other characters in it.
    """
    return "information_schema.processlist" if "MariaDB" in version else "performance_schema.processlist"
