"""The archive's folder, local or on any file system of pyarrow: listing, and atomic creation of files."""

from __future__ import annotations

import os
import re
import uuid
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import fs

from consumer_sdk.errors import ConfigurationError
from halfmq_pipeline.archive.layout import parse, topic_folder

if TYPE_CHECKING:
    from halfmq_pipeline.archive.layout import Piece

__all__ = ["Folder"]

_UNFINISHED = "_writing-"
_LISTINGS = 10
# Hadoop's names of stores that differ from pyarrow's.
_OF_HADOOP = {"s3": "s3a"}
_PATTERN = re.compile(r"[][{}*?\\]")


class Folder:
    """Folder of an archive. It is sent to executors by its name."""

    def __init__(self, uri: str) -> None:
        """Opens it; it need not exist yet.

        Args:
            uri: A path, or a URI such as ``s3://bucket/archive`` or ``hdfs://host/archive``. Executors need to reach it
                under the same name.

        Raises:
            ConfigurationError: pyarrow cannot read the URI.
        """
        scheme, is_uri, _ = uri.partition("://")
        if found := _PATTERN.search(uri.partition("?")[0] if is_uri else uri):
            msg = f"the folder {uri!r} has a {found.group()!r} in its name, which Spark reads as a pattern; rename it"
            raise ConfigurationError(msg, field="folder")
        self.uri = uri if is_uri else str(Path(uri).absolute())
        try:
            self._files, self._root = fs.FileSystem.from_uri(self.uri)
        except (pa.ArrowInvalid, OSError) as error:
            msg = f"the archive's folder {uri!r} cannot be opened: {error}; give a path, or a URI that pyarrow knows"
            raise ConfigurationError(msg, field="folder") from None
        self._local = isinstance(self._files, fs.LocalFileSystem)
        if self._local:
            self._spark_root = f"file://{self._root}"
        elif scheme == "hdfs":
            self._spark_root = uri.partition("?")[0].rstrip("/")
        else:
            self._spark_root = f"{_OF_HADOOP.get(scheme, scheme)}://{self._root}"

    def __reduce__(self) -> tuple[type[Folder], tuple[str]]:
        """Pickled by its name."""
        return type(self), (self.uri,)

    def spark_path(self, path: str) -> str:
        """A file's name for Spark: an unescaped URI."""
        return f"{self._spark_root}/{path}".rstrip("/")

    def topics(self) -> list[str]:
        """The topics in it."""
        names = [info.base_name for info in self._listed(self._root, recursive=False)]
        return sorted(unquote(name.removeprefix("topic=")) for name in names if name.startswith("topic="))

    def pieces(self, topic: str) -> list[Piece]:
        """All files of a topic, and recorded gaps."""
        # If a file is merged while the folder is listed, both it and the merged file may be missing.
        found, before = self._found(topic), None
        for _ in range(_LISTINGS):
            if found == before:
                break
            found, before = self._found(topic), found
        return found

    def _found(self, topic: str) -> list[Piece]:
        listed = self._listed(f"{self._root}/{topic_folder(topic)}")
        found = [parse(self._relative(info), info.size or 0) for info in listed]
        return sorted(piece for piece in found if piece is not None)

    def _listed(self, below: str, *, recursive: bool = True) -> list[fs.FileInfo]:
        listed: list[fs.FileInfo] = self._files.get_file_info(
            fs.FileSelector(below, recursive=recursive, allow_not_found=True)
        )
        return listed

    def _relative(self, info: fs.FileInfo) -> str:
        path: str = info.path
        return path.removeprefix(self._root).lstrip("/")

    def open(self, path: str) -> pa.NativeFile:
        """Opens a file for random access."""
        return self._files.open_input_file(f"{self._root}/{path}")

    def create(self) -> Unfinished:
        """Begins a file; finish or discard it."""
        return Unfinished(self._files, self._root, local=self._local)

    def note(self, path: str, content: bytes = b"") -> None:
        """Creates a small file."""
        unfinished = self.create()
        try:
            unfinished.stream.write(content)
            unfinished.finish(path)
        finally:
            unfinished.discard()

    def read_note(self, path: str) -> bytes | None:
        """Contents of a small file; None if it does not exist."""
        try:
            with self.open(path) as source:
                content: bytes = source.read()
                return content
        except FileNotFoundError:
            return None

    def has(self, path: str) -> bool:
        """Whether there is a file of this name."""
        found: bool = self._files.get_file_info(f"{self._root}/{path}").type == fs.FileType.File
        return found

    def delete(self, path: str) -> None:
        """Deletes a file, if it exists."""
        with suppress(FileNotFoundError):
            self._files.delete_file(f"{self._root}/{path}")

    def sweep(self, older_than: timedelta) -> int:
        """Deletes unfinished files of killed tasks; returns how many."""
        before = datetime.now(UTC) - older_than
        left = [
            info
            for info in self._listed(self._root, recursive=False)
            if info.base_name.startswith(_UNFINISHED) and info.mtime is not None and info.mtime < before
        ]
        for info in left:
            self.delete(self._relative(info))
        return len(left)


class Unfinished:
    """A file under a temporary name that readers ignore, until it is finished."""

    def __init__(self, files: fs.FileSystem, root: str, *, local: bool) -> None:
        """Creates it."""
        self._files = files
        self._root = root
        self._local = local
        self._path: str | None = f"{root}/{_UNFINISHED}{uuid.uuid4().hex}"
        files.create_dir(root, recursive=True)
        self.stream = files.open_output_stream(self._path)

    def finish(self, path: str) -> int:
        """Closes it and renames it to its final name, replacing an existing file; returns its size.

        On a local disk it is flushed before the rename, and the rename is flushed before this returns.
        """
        if self._path is None:
            raise ValueError("this file was finished before")
        self.stream.close()
        target = f"{self._root}/{path}"
        parent = target.rpartition("/")[0]
        self._files.create_dir(parent, recursive=True)
        if self._local:
            _to_disk(self._path)
        size: int = self._files.get_file_info(self._path).size
        self._files.move(self._path, target)
        self._path = None
        if self._local:
            for folder in (parent, parent.rpartition("/")[0], self._root):
                _to_disk(folder)
        return size

    def discard(self) -> None:
        """Deletes it, unless it was finished."""
        if self._path is not None:
            with suppress(OSError):
                self.stream.close()
            with suppress(OSError):
                self._files.delete_file(self._path)
            self._path = None


def _to_disk(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
