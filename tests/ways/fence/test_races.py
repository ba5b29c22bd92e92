"""Checks race with local transactions: the answer is what the database says, every time.

HALFMQ_FENCE_RACES is how many there are on each database (60); the 10,000 on all four:

    HALFMQ_FENCE_RACES=2500 scripts/test tests/ways/fence/test_races.py
"""

from __future__ import annotations

import multiprocessing
import os
import random
import threading
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from client_core.ids import new_id
from producer_sdk import HalfMessages, LocalTransactionState
from producer_sdk.fence import FenceSettings, TransactionFence
from ways import racing
from ways.racing import KILLED, LONGEST, Course

if TYPE_CHECKING:
    from ways.shops import Shop

RACES = int(os.environ.get("HALFMQ_FENCE_RACES", "60"))
AT_ONCE = 8
CONTEXT = multiprocessing.get_context("forkserver")
COMMIT, ROLLBACK, UNKNOWN = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK, LocalTransactionState.UNKNOWN
WEIGHTS = {
    Course.FAST: 4,
    Course.SLOW: 6,
    Course.LATE: 4,
    Course.ROLLED_BACK: 2,
    Course.SESSION_ENDED: 2,
} | dict.fromkeys(KILLED, 1)


class Race:
    """One transaction, and all answers that checks of it got."""

    def __init__(self, shop: Shop, fence: TransactionFence, seed: int) -> None:
        self.transaction_id = new_id()
        self.chance = random.Random(seed)
        self.seed = seed
        self.course = self.chance.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        self.answers: list[LocalTransactionState] = []
        self._shop, self._fence = shop, fence
        self._ready: Any = CONTEXT.Event() if self.course in KILLED else threading.Event()

    def run(self) -> None:
        """The local transaction, and two who ask while it runs."""
        asking = [threading.Thread(target=self._ask) for _ in range(2)]
        for thread in asking:
            thread.start()
        if self.course in KILLED:
            arguments = (self._shop.kind, self._shop.url, self.transaction_id, self.course, self.seed, self._ready)
            process = CONTEXT.Process(target=racing.run_in_process, args=arguments, daemon=True)
            process.start()
            process.join(60)
            assert process.exitcode in {-9, 0}, "killed, or refused before"
        else:
            try:
                racing.run(self._shop, self.transaction_id, self.course, self.seed, self._ready.set)
            except Exception as error:
                # Of the driver: the session was ended, or SQLite was locked for too long.
                self.error = error
        for thread in asking:
            thread.join()

    def _ask(self) -> None:
        """Asks as a broker does, until there is an answer."""
        deadline = time.monotonic() + 60
        self._ready.wait(60)
        # Some at once, when the local transaction has hardly begun.
        time.sleep(self.chance.choice([0.0, 0.0, self.chance.uniform(0, 3 * LONGEST)]))
        while time.monotonic() < deadline:
            answer = self._fence.check_local_transaction(HalfMessages(self.transaction_id, ()))
            self.answers.append(answer)
            if answer is not UNKNOWN:
                return
            time.sleep(0.01)


@pytest.mark.timeout(3600)
def test_every_answer_is_what_the_database_says(shop: Shop) -> None:
    fence = TransactionFence(shop.engine, settings=FenceSettings(wait=1.0))
    fence.create_tables()
    CONTEXT.set_forkserver_preload(["ways.racing"])
    races = [Race(shop, fence, seed) for seed in range(RACES)]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        list(threads.map(Race.run, races))
    orders, rows = set(shop.orders()), shop.fences()
    ends: defaultdict[Course, Counter[str]] = defaultdict(Counter)
    for race in races:
        happened = race.transaction_id in orders
        assert set(race.answers) - {UNKNOWN} == {COMMIT if happened else ROLLBACK}, (race.seed, race.course)
        assert rows[race.transaction_id] == ("committed" if happened else "refused"), race.seed
        assert fence.check_local_transaction(HalfMessages(race.transaction_id, ())) is (
            COMMIT if happened else ROLLBACK
        )
        ends[race.course]["committed" if happened else "refused"] += 1
    print({course.name: dict(count) for course, count in ends.items()})
    assert set(ends) == set(Course) or RACES < 200
    # Each course that can end in two ways did so: else nothing raced.
    assert (
        all(ends[course]["committed"] and ends[course]["refused"] for course in (Course.SLOW, Course.LATE))
        or RACES < 200
    )
    assert not ends[Course.ROLLED_BACK]["committed"]
    assert not ends[Course.KILLED_BEFORE]["committed"]
