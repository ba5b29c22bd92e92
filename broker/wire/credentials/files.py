"""Files that are read again when they were replaced."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from broker.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger("halfmq.access")

Content = TypeVar("Content")

PAUSE = 0.5
"""Seconds between two looks at a file."""


class WatchedFile(Generic[Content]):
    """The content of a file. While it cannot be read, as when it is being replaced, what was read before counts."""

    def __init__(self, file: str, read: Callable[[bytes], Content], *, field: str) -> None:
        """Reads it.

        Args:
            file: its name.
            read: what it holds; raises ConfigurationError, whose text shows no secrets.
            field: the setting that names it.

        Raises:
            ConfigurationError: it cannot be read.
        """
        self._file, self._read, self._field = Path(file), read, field
        self._state = self._look()
        self._content = self._load()
        self._looked_at = time.monotonic()

    def content(self, *, anew: bool = False) -> Content:
        """What it holds now, or did half a second ago.

        Args:
            anew: what it holds now; for something that was shown and was not in it, for it may have been added since.
        """
        now = time.monotonic()
        if now - self._looked_at < PAUSE and not anew:
            return self._content
        self._looked_at = now
        state = self._look()
        if state is None or state == self._state:
            # One that is gone is another one when it is back, however much it looks like the one before.
            self._state = state
            return self._content
        self._state = state
        try:
            self._content = self._load()
        except ConfigurationError as error:
            logger.warning("%s: what it held before stays in use: %s", self._field, error.message)
        else:
            logger.info("%s: the file %r is read again", self._field, str(self._file))
        return self._content

    def _look(self) -> tuple[int, int, int] | None:
        try:
            found = self._file.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def _load(self) -> Content:
        try:
            raw = self._file.read_bytes()
        except OSError as error:
            raise ConfigurationError(
                f"The file {str(self._file)!r} cannot be read: {error.strerror}.", field=self._field
            ) from None
        return self._read(raw)
