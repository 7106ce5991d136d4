"""Where `Storage` keeps its files: a folder of this machine, or a filesystem of pyarrow. Both write
atomically.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo, FileSystem

HIDDEN = "."  # prefix of the names of unfinished files; no other file may have it
_UNFINISHED = re.compile(r"\.[^.].*\.[0-9a-f]{32}")  # names that `hidden_name` returns
# Filesystems where a file appears when its upload is complete, so that no rename is needed.
_BUCKETS = ("s3", "gcs", "abfs")
# Parts of pyarrow's messages for failures of servers and networks, but not of keys, buckets and
# permissions.
_TRANSIENT = re.compile(
    r"NETWORK_CONNECTION|REQUEST_TIMEOUT|SLOW_DOWN|THROTTLING|SERVICE_UNAVAILABLE|INTERNAL_FAILURE|curlCode"
    r"|[Tt]imed out|[Cc]onnection re|HTTP status (429|5\d\d)|kUnavailable|Status\(UNAVAILABLE"
)
_GCS_LIMIT = "retry_limit_seconds"
_GCS_RETRY_S = 4
_S3_ATTEMPTS = 2  # each fails after 3 s without a byte
_S3_TEXTS = ("scheme", "endpoint_override", "tls_ca_file_path")  # parameters of its URIs
_S3_FLAGS = ("allow_bucket_creation", "allow_bucket_deletion", "allow_delayed_open")
_ADVICE = (
    (_TRANSIENT, "check that the server runs and can be reached"),
    (
        re.compile(
            "ACCESS_DENIED|INVALID_ACCESS_KEY_ID|SIGNATURE_DOES_NOT_MATCH|EXPIRED_TOKEN|kPermissionDenied|PERMISSION_DENIED"
        ),
        "check the keys, and what the bucket's policy allows",
    ),
    (re.compile("NO_SUCH_BUCKET"), "create the bucket, or correct its name"),
)


def hidden_name(name: str) -> str:
    """A new name for a file that is not finished."""
    return f"{HIDDEN}{name}.{uuid.uuid4().hex}"


def open_regular(path: str | Path, mode: Literal["rb", "ab+"]) -> IO[bytes]:
    """Open a file to read it, or to append to it or lock it.

    Raises:
        OSError: the path is a link, a device or a pipe; or a file is opened to write that has a
            second name, which may be outside of its folder.
    """
    with_write = mode != "rb"
    try:
        # Before opening: opening a device or a pipe may wait.
        _check_regular(os.lstat(path), with_write)
    except FileNotFoundError:
        if not with_write:
            raise
    flags = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    if with_write:
        flags |= os.O_RDWR | os.O_APPEND | os.O_CREAT
    else:
        flags |= os.O_RDONLY
    handle = os.open(path, flags, 0o666)
    try:
        _check_regular(os.fstat(handle), with_write)
        return os.fdopen(handle, mode)
    except BaseException:
        os.close(handle)
        raise


def _check_regular(facts: os.stat_result, with_write: bool) -> None:
    if stat.S_ISDIR(facts.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(facts.st_mode):
        raise OSError(errno.EINVAL, "a link, a device or a pipe in the place of a file; remove it")
    if with_write and facts.st_nlink > 1:
        raise OSError(
            errno.EMLINK,
            "has a second name (a hard link), so another file would change too; copy it first",
        )


class LocalFiles:
    """Files of this machine. A file that was written is also on the disk.

    With a root, a link below it that leads out of it is an error, so that a folder that somebody
    else made gives no access to other files. Without one, links are followed.
    """

    def __init__(self, root: str | None = None) -> None:
        self.root = root

    def read(self, path: str) -> bytes:
        with self.open(path, "rb") as file:
            return file.read()

    def open(self, path: str, mode: Literal["rb", "ab+"]) -> IO[bytes]:
        """Open a file (see `open_regular`). Creates the folder of one that is written."""
        if self.root is None:
            return open(path, mode)
        place = self._inside(path)
        if mode != "rb":
            _make_folder(place.parent)
        return open_regular(place, mode)

    def _inside(self, path: str | Path) -> Path:
        """The path without links. Raises OSError if a link leads out of the root."""
        if self.root is None:
            return Path(path)
        place = Path(os.path.realpath(path))
        root = os.path.realpath(self.root)
        if not place.is_relative_to(root):
            raise OSError(
                errno.ELOOP,
                f"a link leads out of {self.root}, to {place}; replace it by what it links to",
            )
        return place

    def write(self, path: str, data: bytes) -> None:
        """Replace an earlier file, or a link. Creates its folder."""
        target = self._inside(os.path.dirname(path)) / os.path.basename(path)
        _make_folder(target.parent)
        hidden = target.with_name(hidden_name(target.name))
        try:
            with open(hidden, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(hidden, target)
        except BaseException:
            hidden.unlink(missing_ok=True)
            raise
        _sync_folder(target.parent)

    def move(self, old: str, new: str) -> None:
        """Rename a file, replacing an earlier one of the new name. Creates its folder."""
        folder = self._inside(os.path.dirname(new))
        _make_folder(folder)
        os.replace(
            self._inside(os.path.dirname(old)) / os.path.basename(old),
            folder / os.path.basename(new),
        )
        _sync_folder(folder)

    def remove(self, path: str) -> None:
        os.unlink(self._inside(os.path.dirname(path)) / os.path.basename(path))

    def is_file(self, path: str) -> bool:
        """Whether there is a file. Raises OSError for a link that leads out, a device or a pipe."""
        try:
            _check_regular(os.stat(self._inside(path)), with_write=False)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return False
        return True

    def names(self, folder: str) -> list[str]:
        """The complete files directly in a folder; none if there is no such folder. Links, devices
        and pipes are among them: reading them is an error.
        """
        try:
            with os.scandir(self._inside(folder or "/")) as entries:
                found = [entry.name for entry in entries if not entry.is_dir(follow_symlinks=False)]
        except FileNotFoundError:
            return []
        return [name for name in found if not name.startswith(HIDDEN)]

    def unfinished(self, folder: str) -> dict[str, float]:
        """The files directly in a folder that `write` did not finish, with the seconds since each
        last changed.
        """
        found = {}
        with suppress(FileNotFoundError), os.scandir(self._inside(folder or "/")) as entries:
            for entry in entries:
                if _UNFINISHED.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                    found[entry.path] = time.time() - entry.stat(follow_symlinks=False).st_mtime
        return found


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


class RemoteFiles:
    """Files of a pyarrow filesystem: buckets, or folders without atomic uploads."""

    def __init__(self, fs: FileSystem) -> None:
        self.fs = fs

    def read(self, path: str) -> bytes:
        with self.fs.open_input_stream(path, compression=None) as stream:
            data: bytes = stream.read()
        return data

    def write(self, path: str, data: bytes) -> None:
        """Replace an earlier file. Creates its folder."""
        folder, slash, last = path.rpartition("/")
        upload = path
        if not _is_bucket(self.fs):
            upload = f"{folder}{slash}{hidden_name(last)}"
            if folder:
                self.fs.create_dir(folder, recursive=True)
        stream = self.fs.open_output_stream(upload, compression=None)
        stream.write(data)
        stream.close()  # not after a failed write: closing completes an upload
        if upload != path:
            self.fs.move(upload, path)

    def move(self, old: str, new: str) -> None:
        """Rename a file, replacing an earlier one of the new name. Creates its folder."""
        if not _is_bucket(self.fs):
            self.fs.create_dir(new.rpartition("/")[0], recursive=True)
        self.fs.move(old, new)

    def remove(self, path: str) -> None:
        self.fs.delete_file(path)

    def is_file(self, path: str) -> bool:
        return bool(self.fs.get_file_info(path).is_file)

    def names(self, folder: str) -> list[str]:
        """The complete files directly in a folder; none if there is no such folder."""
        return [entry.base_name for entry in self.entries(folder)]

    def entries(self, folder: str) -> list[FileInfo]:
        """The complete files directly in a folder, with the server's facts about each."""
        from pyarrow.fs import FileSelector

        found = self.fs.get_file_info(FileSelector(folder, allow_not_found=True))
        return [
            entry for entry in found if entry.is_file and not entry.base_name.startswith(HIDDEN)
        ]

    def unfinished(self, folder: str) -> dict[str, float]:
        """See `LocalFiles.unfinished`. In a bucket there are none: a file appears when its upload
        is complete.
        """
        from pyarrow.fs import FileSelector

        if _is_bucket(self.fs):
            return {}
        found = self.fs.get_file_info(FileSelector(folder, allow_not_found=True))
        files = [
            entry for entry in found if entry.is_file and _UNFINISHED.fullmatch(entry.base_name)
        ]
        return {entry.path: time.time() - (entry.mtime_ns or 0) / 1e9 for entry in files}

    def has_bucket(self, root: str) -> bool:
        """Whether the bucket of a path exists; True if the filesystem has none, or does not say."""
        from pyarrow.fs import FileType

        bucket = root.strip("/").partition("/")[0]
        try:
            return (
                not _is_bucket(self.fs) or self.fs.get_file_info(bucket).type != FileType.NotFound
            )
        except OSError as error:
            if is_transient(error):
                raise
            return True  # keys for files alone are enough


def _is_bucket(fs: Any) -> bool:
    """Whether a filesystem, or the one below a subtree, holds buckets."""
    while hasattr(fs, "base_fs"):
        fs = fs.base_fs
    return fs.type_name in _BUCKETS


def connect(uri: str) -> tuple[FileSystem, str]:
    """The filesystem of a URI, and the path in it. A server that does not respond fails an action
    in seconds, not in pyarrow's minutes; `Storage` decides how long to try again.

    Raises:
        ValueError, OSError, NotImplementedError: pyarrow's.
    """
    from pyarrow import fs

    if uri.startswith(("gs://", "gcs://")) and _GCS_LIMIT not in uri:
        mark = "&" if "?" in uri else "?"
        uri += f"{mark}{_GCS_LIMIT}={_GCS_RETRY_S}"
    found, path = fs.FileSystem.from_uri(uri)
    if found.type_name == "s3":
        found = _with_few_attempts(uri, found.region)
    return found, path


def _with_few_attempts(uri: str, region: str) -> FileSystem:
    """The filesystem of an s3 URI that pyarrow accepts. A URI cannot set the number of attempts,
    pyarrow's constructor can.
    """
    from pyarrow import fs

    parts = urlsplit(uri)
    given = dict(parse_qsl(parts.query))
    options: dict[str, Any] = {key: given[key] for key in _S3_TEXTS if key in given}
    options |= {key: given[key].lower() in ("true", "1") for key in _S3_FLAGS if key in given}
    if parts.username:
        options["access_key"] = unquote(parts.username)
        options["secret_key"] = unquote(parts.password or "")
    retries = fs.AwsStandardS3RetryStrategy(max_attempts=_S3_ATTEMPTS)
    return fs.S3FileSystem(region=region, retry_strategy=retries, **options)


def advice(error: Exception) -> str:
    """What to do about an error, as the end of its message; "" if unknown."""
    return next((f"; {fix}" for codes, fix in _ADVICE if codes.search(str(error))), "")


def is_transient(error: OSError) -> bool:
    """Whether the server or the network failed, so that the same request may succeed later."""
    return _TRANSIENT.search(str(error)) is not None
