"""`halfmq cells move`: what it tells when a move stops."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from broker.errors import StorageUnavailable
from halfmq_cli import cells

if TYPE_CHECKING:
    from broker.storage.moving.home import Move
    from broker.storage.moving.mover import Mover

MOVE = cast("Move", SimpleNamespace(number=7))


def mover_that_fails(error: Exception, *, is_open: bool) -> Mover:
    def carry_on(_: Any) -> None:
        raise error

    return cast("Mover", SimpleNamespace(carry_on=carry_on, open_move=lambda: MOVE if is_open else None))


@pytest.mark.parametrize("error", [StorageUnavailable("away"), LookupError("nobody foresaw it")])
@pytest.mark.parametrize("is_open", [True, False])
def test_a_move_that_is_left_open_is_told_of_whatever_stopped_it(
    error: Exception, is_open: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(type(error)):
        cells._carried_on(mover_that_fails(error, is_open=is_open), MOVE)
    told = capsys.readouterr().err
    assert ("the move 7 has not ended" in told, "--give-up" in told) == (is_open, is_open)
