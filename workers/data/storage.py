"""Where a sweep keeps its files: a folder on this machine, or a URI that pyarrow.fs supports
(s3://, gs://, ...).

Writes are atomic: if a process is killed while writing, `names` and `exists` report no new file. If
several processes write one name, the last to finish wins. If a remote server that was reached
before does not respond, an action waits and tries again. Only `uri` contains the credentials of a
URI; `display_name`, repr and errors do not.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal, TypeVar
from urllib.parse import unquote, urlsplit

from search_spaces.paths import check_utf8, is_remote, local_path
from workers.data.files import HIDDEN, LocalFiles, RemoteFiles, advice, connect, is_transient
from workers.data.uris import check_quoting, without_secrets

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_RETRY_TIMEOUT_S = 120.0  # for a server that responded before
_RETRY_S = (0.5, 10.0)  # the first wait, and the longest; each wait doubles the last
_READERS = 16  # files that are read at a time
_K = TypeVar("_K")
_T = TypeVar("_T")


def in_parallel(read: Callable[[_K], _T], items: Iterable[_K]) -> Generator[_T]:
    """read(item) of each item, in their order. Several items are read at a time: an answer of a
    bucket takes far longer than the transfer of a small file. No more of them are kept than are
    read at a time.
    """
    with ThreadPoolExecutor(_READERS) as pool:
        waiting: deque[Future[_T]] = deque()
        for item in items:
            waiting.append(pool.submit(copy_context().run, read, item))
            if len(waiting) == _READERS:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


class StorageError(OSError):
    """A storage cannot be read or written, or is out of space. A missing file is a
    FileNotFoundError instead.
    """


class Storage:
    """Files below a root, which is a path (relative and `~` allowed) or a URI. Opening it creates
    nothing. Links that lead out of a local root are errors.

    Names are relative, with `/` between folders; `write` creates the folders. A `filesystem` is
    used instead of the URI's own; the URI's path is then a path inside it.

    Raises:
        ValueError: the URI is malformed, or pyarrow.fs does not support its scheme.
    """

    __slots__ = ("_files", "_is_reached", "_root", "_secrets", "display_name", "uri")

    def __init__(self, uri: str | Path, *, filesystem: FileSystem | None = None) -> None:
        text = str(uri)
        remote = is_remote(text)
        if remote:
            scheme, mark, rest = text.partition("://")
            text = f"{scheme.lower()}{mark}{rest}"
        self._is_reached = False
        self.uri = text
        if not remote and filesystem is None:
            self.uri = os.path.abspath(local_path(text))
        self.display_name = self.uri
        self._secrets: tuple[str, ...] = ()
        self._root = self.uri.rstrip("/")
        if remote:
            self.display_name, self._secrets = without_secrets(text)
            self._root = urlsplit(text).path.rstrip("/")
        else:
            check_utf8(self.uri)  # with the name of the working folder
        if remote and filesystem is None:
            check_quoting(text)
            filesystem, self._root = self._connect()
        self._files: LocalFiles | RemoteFiles
        if filesystem is None:
            self._files = LocalFiles(self._root or "/")
        else:
            self._files = RemoteFiles(filesystem)

    @classmethod
    def holding(cls, file: str | Path) -> tuple[Storage, str]:
        """The storage of the folder of a file's path or URI, and the file's name in it. Links are
        followed: a user has named the file.

        Raises:
            ValueError: a malformed URI, or one that ends in a slash.
        """
        text = str(file)
        if not is_remote(text):
            path = Path(os.path.abspath(local_path(text)))
            storage = cls(path.parent)
            storage._files = LocalFiles()
            return storage, path.name
        base, mark, options = text.partition("?")
        folder, _, name = base.rpartition("/")
        if not name or folder.endswith("/"):
            raise ValueError(f"{without_secrets(text)[0]}: names no file; add a file's name")
        check_quoting(text)
        return cls(f"{folder}{mark}{options}"), unquote(name)

    def locate(self, name: str) -> str:
        """The display name of a file: the storage's, with the name in its path."""
        if not name:
            return self.display_name
        root, mark, options = self.display_name.partition("?")
        return f"{root}/{name}{mark}{options}"

    def __repr__(self) -> str:
        return f"Storage({self.display_name!r})"

    def write(self, name: str, data: bytes) -> None:
        """Store `data` under `name` atomically, replacing an earlier file.

        Raises:
            StorageError: no space or no permission; an earlier file stays unchanged.
        """
        path = self._at(name)
        self._call(name, lambda files: files.write(path, data))

    def read(self, name: str) -> bytes:
        """The bytes stored under `name`.

        Raises:
            FileNotFoundError: there is no such file.
        """
        path = self._at(name)
        return self._call(name, lambda files: files.read(path))

    def move(self, name: str, new: str) -> None:
        """Rename a file, replacing an earlier one of the new name.

        Raises:
            FileNotFoundError: there is no such file.
        """
        old = self._at(name)
        path = self._at(new)
        self._call(name, lambda files: files.move(old, path))

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""
        path = self._at(name)
        with suppress(FileNotFoundError):
            self._call(name, lambda files: files.remove(path))

    def exists(self, name: str) -> bool:
        """Whether a complete file has this name."""
        path = self._at(name)
        return self._call(name, lambda files: files.is_file(path))

    def names(self, folder: str = "") -> list[str]:
        """The names of the files directly in a folder, sorted; empty if there is no such folder."""
        path = self._folder(folder)
        return sorted(self._call(folder, lambda files: files.names(path)))

    def modified(self, folder: str) -> dict[str, float]:
        """The files directly in a folder of remote storage, and when each was written, in seconds
        by the server.
        """
        files = self._files
        path = self._at(folder)
        assert isinstance(files, RemoteFiles)
        entries = self._call(folder, lambda _: files.entries(path))
        return {entry.base_name: (entry.mtime_ns or 0) / 1e9 for entry in entries}

    def remove_unfinished(self, folder: str = "", age_s: float = 0.0) -> int:
        """Remove the files directly in a folder whose writers were killed; returns their number.

        Files younger than `age_s` seconds stay: other processes may be writing them.
        """
        path = self._folder(folder)
        found = self._call(folder, lambda files: files.unfinished(path))
        removed = 0
        for name in (name for name, age in found.items() if age >= age_s):
            with suppress(OSError):  # another user's, or already removed
                self._files.remove(name)
                removed += 1
        return removed

    def check_bucket(self) -> None:
        """Check that the bucket of remote storage exists, since only writing would fail without it.

        Raises:
            OSError: it does not, or the server does not answer.
        """
        files = self._files
        if not isinstance(files, RemoteFiles):
            return
        if not self._call("", lambda _: files.has_bucket(self._root)):
            raise FileNotFoundError(
                f"{self.display_name}: there is no such bucket; create it, or correct its name"
            )

    def open(self, name: str, mode: Literal["rb", "ab+"]) -> IO[bytes] | None:
        """A local file, to read it line by line, append to it or lock it; None if the storage is
        remote.

        Raises:
            FileNotFoundError: there is no such file to read.
            StorageError: a link out of the root, a device or a pipe is in its place.
        """
        path = self._at(name)
        files = self._files
        if isinstance(files, LocalFiles):
            return self._call(name, lambda _: files.open(path, mode))
        return None

    def path(self, name: str) -> Path | None:
        """The local path of `name`, to name it; None if the storage is remote. `open` opens it."""
        path = self._at(name)
        if isinstance(self._files, LocalFiles):
            return Path(path)
        return None

    def _folder(self, name: str) -> str:
        """The full path of a folder; that of the root for "". Raises ValueError as `_at` does."""
        if not name:
            return self._root
        return self._at(name)

    def _at(self, name: str) -> str:
        """The full path of a name. Raises ValueError if the name could be outside the root."""
        parts = name.split("/")
        if (
            not all(parts)
            or "\\" in name
            or "\0" in name
            or any(part.startswith(HIDDEN) for part in parts)
        ):
            raise ValueError(
                f"storage: {name!r} cannot be a file's name; use names separated by /, none of "
                "which is empty or starts with a dot"
            )
        if self._root or isinstance(self._files, LocalFiles):
            return f"{self._root}/{name}"
        return name

    def _connect(self) -> tuple[FileSystem, str]:
        try:
            return connect(self.uri)
        except (ValueError, OSError, NotImplementedError) as error:
            problem = self._redact(error).partition("\n")[0]
            fix = advice(error) or "; give a folder, s3://, gs:// or abfs://"
        raise ValueError(f"{self.display_name}: cannot be used as storage ({problem}){fix}")

    def _call(self, name: str, action: Callable[[LocalFiles | RemoteFiles], _T]) -> _T:
        """The result of an action on the files. Errors have the display name, and no secrets of the
        URI.

        While a server that responded before does not respond, the action is repeated.
        """
        wait = _RETRY_S[0]
        end = time.monotonic() + _RETRY_TIMEOUT_S
        while True:
            try:
                result = action(self._files)
            except FileNotFoundError:
                raise FileNotFoundError(f"{self.locate(name)}: no such file") from None
            except OSError as error:
                is_away = is_transient(error)
                if not (is_away and self._is_reached) or time.monotonic() + wait > end:
                    self._is_reached &= not is_away  # the next action need not wait as long again
                    raise StorageError(
                        f"{self.locate(name)}: {self._redact(error)}{advice(error)}"
                    ) from None
            else:
                self._is_reached = isinstance(self._files, RemoteFiles)
                return result
            time.sleep(wait)
            wait = min(2 * wait, _RETRY_S[1])

    def _redact(self, error: Exception) -> str:
        text = str(getattr(error, "strerror", None) or error).replace(self.uri, self.display_name)
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text
