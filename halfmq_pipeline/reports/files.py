"""Atomic replacement of files."""

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
    """Yields a temporary name next to a file; it replaces the file when the block ends.

    Missing folders are created. After an error or a crash the file is unchanged.

    Raises:
        ConfigurationError: The folder cannot be created or written to.
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
