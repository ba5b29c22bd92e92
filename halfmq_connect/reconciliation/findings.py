"""What a round found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from consumer_sdk.reconciliation import WRONG

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from consumer_sdk.reconciliation import Window

__all__ = ["Finding", "Round"]


@dataclass(frozen=True, slots=True)
class Finding:
    """A row and messages that do not fit together.

    Attributes:
        kind: One of consumer_sdk.reconciliation.KINDS, such as ``row_without_message``.
        key: The row's key, as text.
        at: Time of the row, or of the message where there is no row.
        message_id: The message, where there is one; the one that was sent, where a repair sent one.
        repaired: Whether a message was sent for the row.
        details: The values that differ, the number of messages, or the ``error`` for which none could be sent.
    """

    kind: str
    key: str
    at: datetime
    message_id: str | None = None
    repaired: bool = False
    details: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Round:
    """One comparison.

    Attributes:
        window: What was compared; None: nothing, see ``postponed``.
        rows: Number of rows that were compared.
        findings: What does not fit together.
        postponed: Why nothing was compared; empty otherwise.
    """

    window: Window | None
    rows: int = 0
    findings: tuple[Finding, ...] = ()
    postponed: str = ""

    @property
    def wrong(self) -> list[Finding]:
        """What was not repaired, without rows whose message is a half message."""
        return [each for each in self.findings if each.kind in WRONG and not each.repaired]
