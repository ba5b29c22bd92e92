"""Files that are there whole, or as they were before."""

from __future__ import annotations

import os
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING

from consumer_sdk.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["replaced"]


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Gives a name next to a file to write to; what was written takes the file's place when the block ends.

    Folders that are missing are made. After an error, and after a crash, the file is what it was before.

    Raises:
        ConfigurationError: The folder cannot be made or written to.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        temporary.touch(exist_ok=False)
    except OSError as error:
        msg = f"{str(path)!r} cannot be written: {error.strerror}; name a folder that can be"
        raise ConfigurationError(msg, field="output") from None
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
