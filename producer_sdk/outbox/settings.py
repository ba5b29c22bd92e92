"""How a relay works: batches, waits, and how long rows are kept."""

from __future__ import annotations

from dataclasses import dataclass

from client_core.arguments import check_count, check_seconds, refuse

__all__ = ["RelaySettings"]


@dataclass(frozen=True, slots=True)
class RelaySettings:
    """Settings of a relay; times in seconds.

    Attributes:
        poll: How often it looks for rows that other processes wrote. Those of its own process wake it.
        batch: Rows in one request at most.
        batch_bytes: Bytes of the messages at most, with their properties; a larger one is sent alone.
        in_flight: Requests under way at a time.
        lease: How long a relay that goes silent keeps the others waiting.
        first_backoff: Wait after the first failure of a message; doubled with each further one, with jitter.
        longest_backoff: What no wait exceeds.
        keep: How long messages that are sent stay as GLOBAL_COMMIT; 0: they are deleted at once.
        keep_rolled_back: How long LOCAL_ROLLBACK stays.
        ids_remembered: For how long the broker knows a message's id, less a margin: the smallest ``retention_hours`` of
            your brokers, which is 72 h by default. A message that may have been stored longer ago is not sent again.
        on_error: ``block``: later messages of a message group wait behind one that failed, until an operator retries
            or skips it. ``pass``: they overtake it.
        decide_every: Wait between two decisions about one message.
        decisions: How often ``decide`` is asked about a message, at most.
        decide_threads: From how many threads ``decide`` is called at a time; for messages of one group from one.
    """

    poll: float = 0.25
    batch: int = 500
    batch_bytes: int = 4 << 20
    in_flight: int = 2
    lease: float = 10.0
    first_backoff: float = 0.5
    longest_backoff: float = 30.0
    keep: float = 0.0
    keep_rolled_back: float = 24 * 3600.0
    ids_remembered: float = 48 * 3600.0
    on_error: str = "block"
    decide_every: float = 30.0
    decisions: int = 15
    decide_threads: int = 4

    def __post_init__(self) -> None:
        """Checks the numbers.

        Raises:
            ConfigurationError: One of them cannot be.
        """
        check_count("RelaySettings.batch", self.batch, 4000)
        check_count("RelaySettings.batch_bytes", self.batch_bytes, 16 << 20)
        check_count("RelaySettings.in_flight", self.in_flight, 16)
        check_count("RelaySettings.decisions", self.decisions)
        check_count("RelaySettings.decide_threads", self.decide_threads, 64)
        for name, least in (
            ("poll", 0.01),
            ("lease", 2.0),
            ("first_backoff", 0.01),
            ("longest_backoff", 0.01),
            ("keep", 0.0),
            ("keep_rolled_back", 0.0),
            ("ids_remembered", 60.0),
            ("decide_every", 0.01),
        ):
            check_seconds(f"RelaySettings.{name}", getattr(self, name), least=least)
        if self.on_error not in {"block", "pass"}:
            refuse("RelaySettings.on_error", "is 'block' or 'pass'", self.on_error)
