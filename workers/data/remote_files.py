"""Files of a pyarrow filesystem that is not this machine's: buckets, or folders without atomic uploads."""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo, FileSystem

HIDDEN = "."  # prefix of the names of unfinished files; no other file may have it
_BUCKETS = ("s3", "gcs", "abfs")  # a file appears there when its upload is complete, so no rename is needed
# How pyarrow words failures of servers and networks, besides those of keys, buckets and permissions.
_TRANSIENT = re.compile(
    r"NETWORK_CONNECTION|REQUEST_TIMEOUT|SLOW_DOWN|THROTTLING|SERVICE_UNAVAILABLE|INTERNAL_FAILURE|curlCode"
    r"|[Tt]imed out|[Cc]onnection re|HTTP status (429|5\d\d)|kUnavailable|Status\(UNAVAILABLE"
)

_GCS_LIMIT, _GCS_RETRY_S = "retry_limit_seconds", 4
_S3_ATTEMPTS = 2  # each fails after 3 s without a byte

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


def connect(uri: str) -> tuple[FileSystem, str]:
    """The filesystem of a URI, and the path in it. A server that does not respond fails an action in seconds, not in
    pyarrow's minutes; `Storage` decides how long to try again.

    Raises:
        ValueError, OSError, NotImplementedError: pyarrow's.
    """
    from pyarrow import fs

    if uri.startswith(("gs://", "gcs://")) and _GCS_LIMIT not in uri:
        uri += f"{'&' if '?' in uri else '?'}{_GCS_LIMIT}={_GCS_RETRY_S}"
    found, path = fs.FileSystem.from_uri(uri)
    if found.type_name == "s3":
        options = found.__reduce__()[1][0]  # as pickling copies it
        retries = fs.AwsStandardS3RetryStrategy(max_attempts=_S3_ATTEMPTS)
        found = fs.S3FileSystem._reconstruct(options | {"retry_strategy": retries})
    return found, path


def advice(error: Exception) -> str:
    """What to do about an error, as the end of its message; "" if unknown."""
    return next((f"; {fix}" for codes, fix in _ADVICE if codes.search(str(error))), "")


def is_transient(error: OSError) -> bool:
    """Whether the server or the network failed, so that the same request may succeed later."""
    return _TRANSIENT.search(str(error)) is not None


def write(fs: FileSystem, path: str, data: bytes) -> None:
    """Store a file atomically."""
    folder, slash, last = path.rpartition("/")
    upload = path if _is_bucket(fs) else f"{folder}{slash}{HIDDEN}{last}.{uuid.uuid4().hex}"
    if folder and upload != path:
        fs.create_dir(folder, recursive=True)
    stream = fs.open_output_stream(upload, compression=None)
    stream.write(data)
    stream.close()  # not after a failed write: closing completes an upload
    if upload != path:
        fs.move(upload, path)


def read(fs: FileSystem, path: str) -> bytes:
    with fs.open_input_stream(path, compression=None) as stream:
        data: bytes = stream.read()
    return data


def move(fs: FileSystem, old: str, new: str) -> None:
    if not _is_bucket(fs):
        fs.create_dir(new.rpartition("/")[0], recursive=True)
    fs.move(old, new)


def list_files(fs: FileSystem, folder: str) -> list[FileInfo]:
    """The complete files directly in a folder; none if there is no such folder."""
    from pyarrow.fs import FileSelector

    found = fs.get_file_info(FileSelector(folder, allow_not_found=True))
    return [entry for entry in found if entry.is_file and not entry.base_name.startswith(HIDDEN)]


def has_bucket(fs: FileSystem, root: str) -> bool:
    """Whether the bucket of a path exists; True if the filesystem has none, or does not say."""
    from pyarrow.fs import FileType

    bucket = root.strip("/").partition("/")[0]
    try:
        return not _is_bucket(fs) or fs.get_file_info(bucket).type != FileType.NotFound
    except OSError as error:
        if is_transient(error):
            raise
        return True  # keys for files alone are enough


def _is_bucket(fs: Any) -> bool:
    """Whether a filesystem, or the one below a subtree, holds buckets."""
    while hasattr(fs, "base_fs"):
        fs = fs.base_fs
    return fs.type_name in _BUCKETS
