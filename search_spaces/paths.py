"""Paths as users write them: the same in every option and file that names one."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_FILE = "file://"
_ONE_SLASH = re.compile(r"(?i)\s*(s3|gs|gcs|abfss?|hdfs|file|https?|hf|sqlite):/*")
_VARIABLE = re.compile(r"\$(\w+|\{\w+\})(?=/|$)")


def is_remote(text: str) -> bool:
    """Whether a path or URI names files that are not on this machine."""
    return bool(SCHEME.match(text)) and not text.lower().startswith(_FILE)


def local_path(text: str | Path, base: Path | None = None) -> Path:
    """The path of a file or folder on this machine, from a path, in which `~` and `~user` are
    expanded, or a file:// URI. Relative paths start from the folder `base`, by default the working
    directory.

    Raises:
        ValueError: the text is empty, not UTF-8, the URI of another machine, or starts with an
            unknown user's home or a shell's variable.
    """
    text = str(text)
    if not text:
        raise ValueError("the path is empty; give a file or folder")
    check_utf8(text)
    if text.lower().startswith(_FILE):
        return _path_of_uri(text)
    if scheme := SCHEME.match(text):
        raise ValueError(f"{scheme[0]}... is not a path; give a file or folder of this machine")
    if mistake := _ONE_SLASH.match(text):
        raise ValueError(
            f"{text}: a URI has two slashes; write {mistake[1].lower()}://{text[mistake.end() :]}"
        )
    if variable := _VARIABLE.match(text):
        fix = f"write its value, or ./{variable[0]} for a file of that name"
        raise ValueError(f"{text}: the variable {variable[0]} is not expanded here; {fix}")
    if not text.startswith("~"):
        path = Path(text)
        if base is not None:
            path = base / text
        if str(path).startswith(("~", "$")):  # it was ./~, and must not be expanded later
            path = path.absolute()
        return path
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ValueError(f"{text}: no home folder is known; write the full path") from None


def check_utf8(name: str) -> None:
    """Check that a file's name, or a command's argument, is UTF-8 text: no result could contain it
    otherwise.

    Raises:
        ValueError: other bytes, or characters that the system's encoding lacks; the message shows
            them escaped.
    """
    try:
        name.encode()
        os.fsencode(name)
    except UnicodeEncodeError as error:
        problem = f"{name!a}: not UTF-8; rename it"
        if (encoding := sys.getfilesystemencoding()) != "utf-8":
            problem += f", or set LC_ALL=C.UTF-8 (this locale's encoding is {encoding})"
        raise ValueError(problem) from error


def _path_of_uri(uri: str) -> Path:
    """The path in a file:// URI. Raises ValueError if it is not quoted, or names a host."""
    if lost := re.search("[?#]", uri):
        quoted = uri.replace("?", "%3F").replace("#", "%23")
        raise ValueError(
            f"{uri}: {lost[0]!r} must be quoted in a URI; write {quoted}, or the plain path"
        )
    split = urlsplit(uri)
    if split.netloc not in ("", "localhost"):
        raise ValueError(
            f"{uri}: a file:// URI names no host; write file:///{split.netloc}{split.path}"
        )
    if not split.path:
        raise ValueError(f"{uri}: names no file; write file:///PATH, or the plain path")
    return Path(unquote(split.path))
