"""When a failed call is tried again, and how long it waits before."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, TypeVar

from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception,
    retry_if_result,
    stop_after_attempt,
    stop_before_delay,
)

from producer_sdk.connection.statuses import is_retryable, retry_hint
from producer_sdk.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["RetryConfig"]

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class RetryConfig:
    """How long and how often to try, per request.

    Attributes:
        attempts: Tries of one request at most, the first one included.
        initial_backoff: Seconds before the second try, before jitter (each wait is 50 to 100 % of its value).
        maximum_backoff: Seconds that no wait exceeds, unless the broker asks for a longer one.
        multiplier: Each wait is this many times the one before.
        deadline: Seconds after which no further try begins. What is unconfirmed then is reported as such.
        attempt_timeout: Seconds for one try, so that a broker that hangs leaves time for another one.
    """

    attempts: int = 20
    initial_backoff: float = 0.05
    maximum_backoff: float = 2.0
    multiplier: float = 2.0
    deadline: float = 30.0
    attempt_timeout: float = 10.0

    def __post_init__(self) -> None:
        """Refuses settings that cannot work.

        Raises:
            ConfigurationError: A setting is out of its range, or two contradict each other.
        """
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                msg = f"RetryConfig.{each.name} is a finite number, not {value!r}"
                raise ConfigurationError(msg, field=each.name)
        if self.attempts < 1 or self.attempts != int(self.attempts):
            _refuse("attempts", "is a whole number, 1 or more", self.attempts)
        if self.initial_backoff <= 0:
            _refuse("initial_backoff", "is more than 0 seconds", self.initial_backoff)
        if self.maximum_backoff < self.initial_backoff:
            _refuse("maximum_backoff", f"is initial_backoff ({self.initial_backoff}) or more", self.maximum_backoff)
        if self.multiplier < 1:
            _refuse("multiplier", "is 1 or more", self.multiplier)
        if self.deadline <= 0:
            _refuse("deadline", "is more than 0 seconds", self.deadline)
        if self.attempt_timeout <= 0:
            _refuse("attempt_timeout", "is more than 0 seconds", self.attempt_timeout)

    def backoff(self, failures: int) -> float:
        """Seconds to wait after so many failures in a row (from 1), with jitter."""
        # Beyond 64 doublings the power may overflow, and the maximum was reached long before.
        grown = self.initial_backoff * self.multiplier ** min(failures - 1, 64)
        # Half of it is random: clients that failed together must not come back together.
        return min(self.maximum_backoff, grown) * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, no secret

    def retrying(self) -> AsyncRetrying:
        """Makes the loop around the tries of one request."""
        return AsyncRetrying(
            retry=retry_if_exception(is_retryable),
            stop=stop_after_attempt(int(self.attempts)) | stop_before_delay(self.deadline),
            wait=self._wait,
            reraise=True,
        )

    def repeating(self, unsettled: Callable[[ResultT], bool]) -> AsyncRetrying:
        """Makes the loop around the tries of one item, which go on while its result is unsettled.

        The result of the last try is given back, whatever it is.
        """
        return AsyncRetrying(
            retry=retry_if_result(unsettled),
            stop=stop_after_attempt(int(self.attempts)) | stop_before_delay(self.deadline),
            wait=self._wait,
            retry_error_callback=lambda state: state.outcome.result() if state.outcome is not None else None,
        )

    def _wait(self, state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome is not None and state.outcome.failed else None
        hint = retry_hint(error) if error is not None else None
        if hint is not None:
            return hint * random.uniform(1.0, 1.2)  # noqa: S311 - not before the time that the broker named
        return self.backoff(state.attempt_number)


def _refuse(name: str, rule: str, value: float) -> None:
    msg = f"RetryConfig.{name} {rule}, not {value!r}"
    raise ConfigurationError(msg, field=name)
