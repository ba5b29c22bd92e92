"""When a nacked message is delivered again, and when it becomes a dead letter.

The delays are RocketMQ's (18 steps from 1 s to 2 h); by default a message is delivered once and retried 16 times,
then it goes to the group's dead letter topic.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.domain.check_policy import SECOND

MINUTE = 60 * SECOND
HOUR = 60 * MINUTE

ROCKETMQ_DELAYS: tuple[int, ...] = (
    *(1 * SECOND, 5 * SECOND, 10 * SECOND, 30 * SECOND),
    *(minutes * MINUTE for minutes in range(1, 11)),
    *(20 * MINUTE, 30 * MINUTE, 1 * HOUR, 2 * HOUR),
)

DEFAULT_MAX_ATTEMPTS = 17


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and after which delays (microseconds) a message is delivered again; `for_ever`: without limit."""

    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    delays: tuple[int, ...] = ROCKETMQ_DELAYS
    for_ever: bool = False

    def exhausted(self, attempt: int) -> bool:
        """Whether the given delivery (from 1) was the last one."""
        return not self.for_ever and attempt >= self.max_attempts

    def delay_after(self, attempt: int, requested: int | None = None) -> int:
        """Microseconds to wait after the given delivery (from 1) failed, unless its consumer requested others."""
        if requested is not None:
            return requested
        return self.delays[min(max(attempt, 1), len(self.delays)) - 1]
