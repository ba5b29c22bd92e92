"""A disk of its own, small enough to be filled: a file system in memory, which only root can make."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType


class SmallDisk:
    """A context manager; without the right to mount, `small` is false and it is the folder that it was given."""

    def __init__(self, folder: Path, megabytes: int) -> None:
        self.folder = folder
        self._megabytes = megabytes
        self._filling = folder / "filling"
        self.small = False

    @property
    def full(self) -> bool:
        """Whether nothing is left of it."""
        return self._filling.exists()

    def fill(self) -> None:
        """Takes all that is left, to the last block."""
        assert self.small, "this disk would be the machine's own"
        file = os.open(self._filling, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            for size in (1 << 20, 1 << 12):
                while _takes(file, size):
                    pass
        finally:
            os.close(file)

    def free(self) -> None:
        """Gives it back."""
        self._filling.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        if os.geteuid() == 0:
            options = f"size={self._megabytes}m"
            mount = ["mount", "-t", "tmpfs", "-o", options, "halfmq-test", str(self.folder)]
            self.small = subprocess.run(mount, capture_output=True, check=False).returncode == 0
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.small:
            subprocess.run(["umount", "--lazy", str(self.folder)], check=True)


def _takes(file: int, size: int) -> bool:
    try:
        return os.write(file, bytes(size)) > 0
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return False
