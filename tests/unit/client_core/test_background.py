from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING

import pytest

from client_core.connection import BackgroundRunner, EventLoopThread
from client_core.ids import new_id
from producer_sdk import AsyncTransactionProducer, ClientClosed, TransactionProducer

if TYPE_CHECKING:
    from collections.abc import Callable


def run_script(code: str) -> str:
    """Runs Python in a process of its own, which a test may interrupt or fork."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


async def name_of_thread() -> str:
    return threading.current_thread().name


@pytest.fixture(autouse=True)
def own_threads(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Tells the names of the threads that the test started; it shares none with a client that tests before it keep."""
    monkeypatch.setattr(EventLoopThread, "_shared", None)
    before = set(threading.enumerate())
    return lambda: [thread.name for thread in threading.enumerate() if thread not in before]


def test_synchronous_clients_share_one_thread_that_ends_with_the_last_of_them(
    own_threads: Callable[[], list[str]],
) -> None:
    first, second = BackgroundRunner("First"), BackgroundRunner("Second")
    assert not first.started
    assert first.run(name_of_thread()) == second.run(name_of_thread()) == "halfmq-event-loop"
    assert own_threads() == ["halfmq-event-loop"]
    first.close()
    first.close()
    assert second.run(name_of_thread()) == "halfmq-event-loop"
    second.close()
    assert own_threads() == []
    with pytest.raises(ClientClosed, match="this First is closed"):
        first.run(name_of_thread())
    with pytest.raises(ClientClosed):
        first.post(print)


def test_waiting_on_the_own_loop_is_refused() -> None:
    thread = EventLoopThread.acquire()

    async def wait_for_itself() -> str:
        return thread.run(name_of_thread())

    try:
        with pytest.raises(RuntimeError, match="use the Async client"):
            thread.run(wait_for_itself())
    finally:
        thread.release()


def test_what_still_runs_is_cancelled_when_the_thread_ends() -> None:
    runner = BackgroundRunner("Client")
    ended: list[str] = []

    async def leave_something_behind() -> asyncio.Task[None]:
        async def forever() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("yes")

        task = asyncio.create_task(forever())
        await asyncio.sleep(0)
        return task

    runner.run(leave_something_behind())
    runner.close()
    assert ended == ["yes"]


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_the_loop_outlives_a_task_that_exits(
    kind: type[BaseException], own_threads: Callable[[], list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    async def leave() -> None:
        raise kind(3)

    async def leave_when_cancelled() -> None:
        asyncio.create_task(until_cancelled())  # noqa: RUF006 - it is left behind on purpose
        await asyncio.sleep(0)

    async def until_cancelled() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise kind(4)

    first, second = BackgroundRunner("First"), BackgroundRunner("Second")
    assert second.run(name_of_thread()) == "halfmq-event-loop"
    with pytest.raises(kind):
        first.run(leave())
    assert first.run(name_of_thread()) == second.run(name_of_thread()) == "halfmq-event-loop"
    second.run(leave_when_cancelled())
    first.close()
    second.close()
    assert own_threads() == []
    assert "the loop goes on" in caplog.text


def test_a_closed_client_names_itself() -> None:
    producer = TransactionProducer("127.0.0.1:1", "g")
    producer.close()
    with pytest.raises(ClientClosed, match="this TransactionProducer is closed"):
        producer.transaction()


def test_asynchronous_producers_name_their_event_loop() -> None:
    producer = AsyncTransactionProducer("127.0.0.1:1", "g")
    asyncio.run(producer.start())
    for work in (producer.start, producer.close, lambda: producer.send("orders", "x")):
        with pytest.raises(RuntimeError, match="first used in"):
            asyncio.run(work())


def test_an_interrupt_cancels_what_is_waited_for() -> None:
    out = run_script(
        """
        import asyncio, os, signal
        from client_core.connection import BackgroundRunner

        seen = []

        async def wait():
            os.kill(os.getpid(), signal.SIGINT)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                seen.append("cancelled")
                raise

        runner = BackgroundRunner("Client")
        try:
            runner.run(wait())
        except KeyboardInterrupt:
            seen.append("interrupted")
        runner.close()
        print(*sorted(seen))
        """
    )
    assert out.split() == ["cancelled", "interrupted"]


def test_a_producer_that_nobody_closed_does_not_keep_the_process() -> None:
    run_script(
        """
        from producer_sdk import BrokerUnavailable, RetryConfig, TransactionProducer

        producer = TransactionProducer("127.0.0.1:1", "g", retry=RetryConfig(attempts=1))
        try:
            producer.send("orders", "x")
        except BrokerUnavailable:
            pass
        """
    )


def test_a_forked_child_is_told_to_make_its_own() -> None:
    producer = TransactionProducer("127.0.0.1:1", "g")
    runner = producer._runner
    runner.run(name_of_thread())
    runner._process = os.getpid() - 1  # as a child sees it
    with pytest.raises(ClientClosed, match="one in each process"):
        producer.send("orders", "x")
    runner._process = os.getpid()
    producer.close()


def test_ids_differ_after_a_fork() -> None:
    out = run_script(
        """
        import os, sys
        from client_core import ids
        ids.new_id()
        ids._millisecond += 3_600_000  # so that both count on from the same id if nothing is done
        if os.fork() == 0:
            print(ids.new_id(), flush=True)
            os._exit(0)
        os.wait()
        print(ids.new_id())
        """
    )
    child, parent = out.split()
    assert child[:13] != parent[:13]
    assert new_id() > child


def test_what_is_scheduled_while_the_loop_ends_is_cancelled_or_refused() -> None:
    """Threads that call while another one closes the last client: none of them waits for ever."""
    for _ in range(10):
        thread = EventLoopThread()
        outcomes: list[BaseException | None] = []

        def call(thread: EventLoopThread = thread, outcomes: list[BaseException | None] = outcomes) -> None:
            try:
                while True:
                    thread.run(asyncio.sleep(0))
            except BaseException as error:
                outcomes.append(error)

        callers = [threading.Thread(target=call) for _ in range(4)]
        for each in callers:
            each.start()
        thread.stop()
        for each in callers:
            each.join(30)
            assert not each.is_alive()
        assert len(outcomes) == 4
        assert all(isinstance(each, ClientClosed | CancelledError) for each in outcomes), outcomes
        with pytest.raises(ClientClosed):
            thread.run(asyncio.sleep(0))
        with pytest.raises(ClientClosed):
            thread.post(print)


def test_exceptions_of_signal_handlers_leave_the_loop_alone() -> None:
    """They strike wherever the thread is, also where it has just taken a lock."""
    said = run_script("""
        import asyncio, random, signal, sys, time, warnings
        from client_core.connection import EventLoopThread

        class Limit(Exception): pass
        def strike(*_): raise Limit
        signal.signal(signal.SIGALRM, strike)
        sys.unraisablehook = lambda _: None  # It also strikes in destructors.
        warnings.simplefilter("ignore")  # A coroutine that was struck before it began.
        thread, struck = EventLoopThread(), 0
        until = time.monotonic() + 5
        while time.monotonic() < until:
            try:
                signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 3e-4))
                # A hundred times: one that strikes in a destructor is passed over.
                for _ in range(100):
                    thread.run(asyncio.sleep(0))
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Limit:
                struck += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(struck > 100, thread.run(asyncio.sleep(0, "goes on")))
    """)
    assert said == "True goes on\n"
