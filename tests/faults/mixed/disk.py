"""A disk of its own, small enough to be filled: a file system in memory, which only root can make."""

from __future__ import annotations

import contextlib
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

    def fill(self) -> None:
        """Takes all that is left, to the last block."""
        assert self.small, "this disk would be the machine's own"
        with self._filling.open("ab") as file:
            for size in (1 << 20, 1 << 12):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(bytes(size))
                        file.flush()
        with self._filling.open("ab") as file:
            try:
                file.write(bytes(1 << 12))
                file.flush()
            except OSError as error:
                assert error.errno == errno.ENOSPC, error
                return
        raise AssertionError("the disk is not full")

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
