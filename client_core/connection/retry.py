"""When a failed call is retried, and after which wait."""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception,
    retry_if_result,
    stop_after_attempt,
    stop_before_delay,
    stop_never,
)

from client_core.arguments import check_count, check_seconds, refuse
from client_core.connection.statuses import is_retryable, retry_hint

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tenacity.stop import stop_base

__all__ = ["RetryConfig"]

ResultT = TypeVar("ResultT")

_JITTER = random.SystemRandom()
"""Its own: the one of the module random belongs to the program, which may have seeded it."""


@dataclass(frozen=True, slots=True)
class RetryConfig:
    """How long and how often to try, per request.

    Attributes:
        attempts: Tries of one request at most, the first one included; None: as many as the deadline leaves room for.
        initial_backoff: Seconds before the second try, before jitter (each wait is 50 to 100 % of its value).
        maximum_backoff: Seconds that no wait exceeds, unless the broker asks for a longer one.
        multiplier: Each wait is this many times the one before.
        deadline: Seconds after which no further try begins. Anything unconfirmed then is reported as such.
        attempt_timeout: Seconds for one try, so that a hung broker leaves time for another one.
    """

    attempts: int | None = None
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
        if self.attempts is not None:
            check_count("RetryConfig.attempts", self.attempts)
        for name in ("initial_backoff", "maximum_backoff", "deadline", "attempt_timeout"):
            check_seconds(f"RetryConfig.{name}", getattr(self, name))
        if self.maximum_backoff < self.initial_backoff:
            rule = f"is initial_backoff ({self.initial_backoff}) or more"
            refuse("RetryConfig.maximum_backoff", rule, self.maximum_backoff)
        multiplier: object = self.multiplier
        if isinstance(multiplier, bool) or not isinstance(multiplier, int | float) or not 1 <= multiplier < math.inf:
            refuse("RetryConfig.multiplier", "is a number, 1 or more", multiplier)

    def backoff(self, failures: int) -> float:
        """Seconds to wait after so many failures in a row (from 1), with jitter."""
        # Beyond 64 doublings the power may overflow; the maximum is reached long before.
        grown = self.initial_backoff * self.multiplier ** min(failures - 1, 64)
        # Half of it is random: clients that failed together must not retry together.
        return min(self.maximum_backoff, grown) * _JITTER.uniform(0.5, 1.0)

    def hinted(self, error: BaseException | None) -> float | None:
        """Seconds to wait as the broker requested, with jitter; None without a request."""
        hint = retry_hint(error) if error is not None else None
        # Never before that time: the broker has promised nothing earlier.
        return None if hint is None else hint * _JITTER.uniform(1.0, 1.2)

    async def run(self, once: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """Runs a request until a try succeeds; raises the error of the last one."""
        began = time.monotonic()
        failed: list[BaseException] = []
        # Nearly all first tries succeed, and the retry loop costs more than the call's own part of the work here.
        try:
            return await once()
        except Exception as error:
            if not is_retryable(error):
                raise
            failed.append(error)

        async def again() -> ResultT:
            if failed:
                raise failed.pop()
            return await once()

        return await self._retrying(time.monotonic() - began)(again)

    def _retrying(self, spent: float) -> AsyncRetrying:
        """The retry loop of a request whose first try, which took so many seconds, is run by it once more."""
        return AsyncRetrying(
            retry=retry_if_exception(is_retryable),
            stop=self._stop(spent),
            wait=self._wait,
            reraise=True,
        )

    def repeating(self, unsettled: Callable[[ResultT], bool]) -> AsyncRetrying:
        """Returns the retry loop of one item, which continues while its result is unsettled.

        The result of the last try is returned in any case.
        """
        return AsyncRetrying(
            retry=retry_if_result(unsettled),
            stop=self._stop(),
            wait=self._wait,
            retry_error_callback=lambda state: state.outcome.result() if state.outcome is not None else None,
        )

    def exhausted(self, tries: int, seconds: float) -> bool:
        """Whether to stop after so many tries, and so many seconds since the first of them began."""
        return seconds >= self.deadline or (self.attempts is not None and tries >= self.attempts)

    def _stop(self, spent: float = 0.0) -> stop_base:
        attempts = stop_never if self.attempts is None else stop_after_attempt(self.attempts)
        return attempts | stop_before_delay(self.deadline - spent)

    def _wait(self, state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome is not None and state.outcome.failed else None
        hinted = self.hinted(error)
        return self.backoff(state.attempt_number) if hinted is None else hinted
