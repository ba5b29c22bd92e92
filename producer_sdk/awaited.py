"""Calls of a block on asyncio whose ``await`` was forgotten: the block must not end as if nothing had been asked."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

__all__ = ["counted", "refuse_unawaited"]


class _Block(Protocol):
    """Counts by name the calls that have not begun."""

    unawaited: dict[str, int]


BlockT = TypeVar("BlockT", bound=_Block)
ParamT = ParamSpec("ParamT")
ResultT = TypeVar("ResultT")


def counted(
    method: Callable[Concatenate[BlockT, ParamT], Coroutine[Any, Any, ResultT]],
) -> Callable[Concatenate[BlockT, ParamT], Coroutine[Any, Any, ResultT]]:
    """Counts the calls of a method whose coroutine nobody has begun to run."""
    name = method.__name__

    @functools.wraps(method)
    def call(self: BlockT, /, *args: ParamT.args, **kwargs: ParamT.kwargs) -> Coroutine[Any, Any, ResultT]:
        self.unawaited[name] = self.unawaited.get(name, 0) + 1

        async def run() -> ResultT:
            self.unawaited[name] -= 1
            return await method(self, *args, **kwargs)

        return run()

    return call


def refuse_unawaited(block: _Block) -> RuntimeError | None:
    """What a block that was to commit ends with where such a call is left; None: there is none."""
    for name, number in block.unawaited.items():
        if number > 0:
            return RuntimeError(
                f"tx.{name}() was called {number} times and not run by the end of the block (await tx.{name}(...)), so "
                "nothing was committed"
            )
    return None
