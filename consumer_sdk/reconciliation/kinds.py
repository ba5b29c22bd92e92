"""Kinds of findings."""

from __future__ import annotations

__all__ = ["DUPLICATE", "IN_DOUBT", "KINDS", "MESSAGE_WITHOUT_ROW", "MISMATCH", "ROW_WITHOUT_MESSAGE", "WRONG"]

ROW_WITHOUT_MESSAGE = "row_without_message"
MESSAGE_WITHOUT_ROW = "message_without_row"
MISMATCH = "mismatch"
DUPLICATE = "duplicate"
IN_DOUBT = "in_doubt"

WRONG = (ROW_WITHOUT_MESSAGE, MESSAGE_WITHOUT_ROW, MISMATCH, DUPLICATE)
"""Kinds of errors that persist until they are fixed."""

KINDS = (*WRONG, IN_DOUBT)
"""All kinds. A row in doubt has a half message, and its message comes when the verdict does."""
