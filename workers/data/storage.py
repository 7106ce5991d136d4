"""Where a sweep keeps its files: a folder on this machine, or a URI that pyarrow.fs supports (s3://, gs://, ...).

Writes are atomic: if a process is killed while writing, `names` and `exists` report no new file. If several processes
write one name, the last to finish wins. Only `uri` contains the credentials of a URI; `display_name`, repr and errors
do not.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_HIDDEN = "."  # prefix of the names of unfinished files; no other file may have it
_PUBLIC_OPTIONS = ("region", "scheme", "endpoint_override")  # of a URI; all others may be secrets
_ATOMIC_UPLOAD = ("s3", "gcs", "abfs")  # a file appears there when its upload is complete, so no rename is needed
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


class Storage:
    """Files below a root, which is a path (relative and `~` allowed) or a URI. Opening it creates nothing.

    Names are relative, with `/` between folders; `write` creates the folders. filesystem: used instead of the URI's
    own; the URI's path is then a path inside it.

    Raises:
        ValueError: the URI is malformed, or pyarrow.fs does not support its scheme.
    """

    __slots__ = ("_fs", "_root", "_secrets", "display_name", "uri")

    def __init__(self, uri: str | Path, *, filesystem: FileSystem | None = None) -> None:
        text = str(uri)
        remote = bool(_SCHEME.match(text)) and not text.lower().startswith("file://")
        self._fs: FileSystem | None = filesystem
        self.uri = text if remote or filesystem is not None else str(_local(text))
        self.display_name, self._secrets = _without_secrets(text) if remote else (self.uri, ())
        self._root = (urlsplit(text).path if remote else self.uri).rstrip("/")
        if remote and filesystem is None:
            self._fs, self._root = self._connect()

    @classmethod
    def holding(cls, file: str | Path) -> tuple[Storage, str]:
        """The storage of the folder of a file's path or URI, and the file's name in it.

        Raises:
            ValueError: a malformed URI, or one that ends in a slash.
        """
        text = str(file)
        if not _SCHEME.match(text) or text.lower().startswith("file://"):
            path = _local(text)
            return cls(path.parent), path.name
        base, mark, options = text.partition("?")
        folder, _, name = base.rpartition("/")
        if not name or folder.endswith("/"):
            raise ValueError(f"{_without_secrets(text)[0]}: names no file; add a file's name")
        return cls(f"{folder}{mark}{options}"), name

    def __repr__(self) -> str:
        return f"Storage({self.display_name!r})"

    def write(self, name: str, data: bytes) -> None:
        """Store `data` under `name` atomically, replacing an earlier file.

        Raises:
            OSError: no space or no permission; an earlier file stays unchanged.
        """
        path = self._at(name)
        if self._fs is None:
            _write_local(Path(path), data)
            return
        with self._redact_errors(name):
            _write_remote(self._fs, path, data)

    def read(self, name: str) -> bytes:
        """The bytes stored under `name`.

        Raises:
            FileNotFoundError: there is no such file.
        """
        path = self._at(name)
        if self._fs is None:
            return Path(path).read_bytes()
        with self._redact_errors(name), self._fs.open_input_stream(path, compression=None) as stream:
            data: bytes = stream.read()
        return data

    def exists(self, name: str) -> bool:
        """Whether a complete file has this name."""
        path = self._at(name)
        if self._fs is None:
            return os.path.isfile(path)
        with self._redact_errors(name):
            return bool(self._fs.get_file_info(path).is_file)

    def names(self, folder: str = "") -> list[str]:
        """The names of the files directly in a folder, sorted; empty if there is no such folder."""
        path = self._at(folder) if folder else self._root
        if self._fs is not None:
            with self._redact_errors(folder):
                return _names_remote(self._fs, path)
        try:
            with os.scandir(path or "/") as entries:
                return sorted(e.name for e in entries if not e.name.startswith(_HIDDEN) and e.is_file())
        except FileNotFoundError:
            return []

    def path(self, name: str) -> Path | None:
        """The local path of `name`; None if the storage is remote."""
        path = self._at(name)
        return Path(path) if self._fs is None else None

    def _at(self, name: str) -> str:
        """The full path of a name. Raises ValueError if the name could be outside the root."""
        parts = name.split("/")
        if not all(parts) or "\\" in name or "\0" in name or any(part.startswith(_HIDDEN) for part in parts):
            raise ValueError(
                f"storage: {name!r} cannot be a file's name; use names separated by /, none of which is empty or "
                "starts with a dot"
            )
        return f"{self._root}/{name}" if self._root or self._fs is None else name

    def _connect(self) -> tuple[FileSystem, str]:
        from pyarrow import fs

        try:
            found: tuple[FileSystem, str] = fs.FileSystem.from_uri(self.uri)
            return found
        except (ValueError, OSError, NotImplementedError) as error:
            problem = self._redact(error)
        raise ValueError(
            f"{self.display_name}: cannot be used as storage ({problem}); give a folder, s3://, gs:// or abfs://"
        )

    @contextmanager
    def _redact_errors(self, name: str) -> Iterator[None]:
        """Re-raises errors of a remote filesystem with the display name, and without the URI's secrets."""
        try:
            yield
        except FileNotFoundError:
            raise FileNotFoundError(f"{self.display_name}/{name}: no such file") from None
        except OSError as error:
            raise OSError(f"{self.display_name}/{name}: {self._redact(error)}") from None

    def _redact(self, error: Exception) -> str:
        text = str(error).replace(self.uri, self.display_name)
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text


def _local(text: str) -> Path:
    """The absolute path of a path or a file:// URI."""
    if not text:
        raise ValueError("storage: the path is empty; give a folder or a URI such as s3://bucket/sweeps")
    if text.lower().startswith("file://"):
        split = urlsplit(text)
        if split.netloc not in ("", "localhost"):
            raise ValueError(f"{text}: a file:// URI names no host; write file:///{split.netloc}{split.path}")
        text = unquote(split.path)
    try:
        return Path(os.path.abspath(Path(text).expanduser()))
    except RuntimeError as error:
        raise ValueError(f"{text}: {error}; write the folder's full path") from None


def _without_secrets(uri: str) -> tuple[str, tuple[str, ...]]:
    """A URI without its credentials, and the parts that were removed, as written and as decoded."""
    scheme, _, rest = uri.partition("://")
    host = re.split("[/?#]", rest, maxsplit=1)[0]
    tail = rest[len(host) :]
    if "@" not in host and ":" in host and ("@" in tail or not host.rpartition(":")[2].isdigit()):
        # an unescaped / ? or # in a key ends the host too early, and the rest of the key would be displayed
        raise ValueError(
            f"storage: malformed {scheme}:// URI (not shown, it may hold keys); in a key write / as %2F, ? as %3F, "
            "# as %23 and @ as %40"
        )
    account, _, server = host.rpartition("@")
    path, _, query = tail.partition("#")[0].partition("?")
    options = parse_qsl(query, keep_blank_values=True)
    public = [(key, value) for key, value in options if key in _PUBLIC_OPTIONS and "@" not in value]
    hidden = [value for key, value in options if (key, value) not in public]
    secrets = {form for part in (account, *account.split(":", 1), *hidden) for form in (part, unquote(part)) if part}
    public_uri = f"{scheme}://{server}{path.rstrip('/')}" + (f"?{urlencode(public, safe=':/')}" if public else "")
    return public_uri, tuple(sorted(secrets, key=len, reverse=True))


def _write_local(path: Path, data: bytes) -> None:
    _make_folder(path.parent)
    hidden = path.with_name(f"{_HIDDEN}{path.name}.{uuid.uuid4().hex}")
    try:
        with open(hidden, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(hidden, path)
    except BaseException:
        hidden.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _make_folder(folder: Path) -> None:
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk, if the system supports it."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _write_remote(fs: FileSystem, path: str, data: bytes) -> None:
    base = fs
    while hasattr(base, "base_fs"):
        base = base.base_fs
    folder, slash, last = path.rpartition("/")
    upload = path if base.type_name in _ATOMIC_UPLOAD else f"{folder}{slash}{_HIDDEN}{last}.{uuid.uuid4().hex}"
    if folder and upload != path:
        fs.create_dir(folder, recursive=True)
    stream = fs.open_output_stream(upload, compression=None)
    stream.write(data)
    stream.close()  # not after a failed write: closing completes an upload
    if upload != path:
        fs.move(upload, path)


def _names_remote(fs: FileSystem, path: str) -> list[str]:
    from pyarrow.fs import FileSelector

    found = fs.get_file_info(FileSelector(path, allow_not_found=True))
    return sorted(entry.base_name for entry in found if entry.is_file and not entry.base_name.startswith(_HIDDEN))
