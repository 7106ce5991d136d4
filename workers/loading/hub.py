"""Files of the Hugging Face Hub in the place of paths: hf://ORG/REPO[/FILE][@REVISION].

`huggingface_hub` finds and downloads them, with its cache, token, mirror and offline variables
(HF_HOME, HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE). Nothing is downloaded unless `pull` is called:
elsewhere, a reference stands for what the cache has. A path in the cache has the commit in it, so
it says which reference it is of.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from glob import escape
from pathlib import Path, PurePosixPath
from typing import Final

from workers.models.checkpoint_files import WeightsError

SCHEME: Final = "hf://"
_NAME = r"[A-Za-z0-9][\w.-]*"
_REFERENCE = re.compile(
    rf"hf://(?P<repo>{_NAME}/{_NAME})(?:/(?P<file>[^@]*[^@/]))?/?(?:@(?P<revision>refs/[^\s@]+|[^\s@/]+))?"
)
_CACHED = re.compile(
    r"/models--(?P<org>[^/]+?)--(?P<name>[^/]+)/snapshots/(?P<commit>[0-9a-f]{40})(?:/(?P<file>.*))?$"
)
# Names of files in formats that are never read.
_UNREAD = [
    "*.h5",
    "*.msgpack",
    "*.onnx*",
    "*.ot",
    "*.gguf",
    "*.tflite",
    "*.mlmodel*",
    "onnx/*",
    "openvino/*",
    "*.md",
]
_PICKLES = ["*.bin", "*.pt", "*.pth", "*.ckpt"]  # read only if a folder has no safetensors


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file or folder of a repository, or all of it.

    Where several files are meant, formats that are never read are left out, and pickles in a folder
    that has safetensors.
    """

    repo: str  # ORG/REPO
    file: str = ""  # a file or folder; "": the whole repository
    revision: str = ""  # a branch, tag or commit; "": the default branch

    @classmethod
    def parse(cls, text: str) -> HubFile:
        """Read a reference.

        Raises:
            ValueError: it is not of the form hf://ORG/REPO[/FILE][@REVISION].
        """
        found = _REFERENCE.fullmatch(text)
        if found is not None:
            repo, file, revision = (part or "" for part in found.group("repo", "file", "revision"))
            steps: list[str] = []
            for path in (file, revision):
                if path:
                    steps += path.split("/")
            if not {"", ".", ".."}.intersection(steps) and not re.search(r"--|\.\.", repo):
                return cls(repo, file, revision)
        raise ValueError(
            f"{text}: must be hf://ORG/REPO or hf://ORG/REPO/FILE; @REVISION may stand at the end"
        )

    def __str__(self) -> str:
        text = f"{SCHEME}{self.repo}"
        if self.file:
            text += f"/{self.file}"
        if self.revision:
            text += f"@{self.revision}"
        return text

    def cached(self) -> Path | None:
        """The path in the cache; None if the cache does not have all of it."""
        from huggingface_hub.errors import LocalEntryNotFoundError

        try:
            return self._fetch(local_files_only=True)
        except LocalEntryNotFoundError:
            return None

    def pull(self) -> Path:
        """Download what the cache does not have, with progress bars on standard error; returns the
        path in the cache.

        Raises:
            WeightsError: no such repository, revision or file; no access; or the Hub cannot be
                reached.
        """
        from httpx2 import HTTPError  # the client of `huggingface_hub`
        from huggingface_hub.errors import (
            GatedRepoError,
            LocalEntryNotFoundError,
            RepositoryNotFoundError,
            RevisionNotFoundError,
        )

        try:
            path = self._fetch(local_files_only=False)
        except GatedRepoError as error:
            raise WeightsError(
                f"{self}: access must be granted on its page; then set HF_TOKEN"
            ) from error
        except RepositoryNotFoundError as error:
            raise WeightsError(
                f"{self}: no such repository, or a private one that needs HF_TOKEN"
            ) from error
        except RevisionNotFoundError as error:
            raise WeightsError(f"{self}: the repository has no such revision") from error
        except (LocalEntryNotFoundError, HTTPError, OSError) as error:
            reason = next(iter(str(error).strip().splitlines()), type(error).__name__).removeprefix(
                "Got: "
            )
            raise WeightsError(
                f"{self}: cannot be downloaded: {reason}; check the network and HF_ENDPOINT"
            ) from error
        if path is None:
            raise WeightsError(f"{self}: the repository has no such file or folder")
        return path

    def _fetch(self, *, local_files_only: bool) -> Path | None:
        """The path of the file or folder in a snapshot, which is downloaded where needed and
        allowed; None: the repository has no such file.
        """
        from huggingface_hub import snapshot_download

        below = ""
        wanted = ["*"]
        if self.file:
            below = f"{escape(self.file)}/"
            wanted = [escape(self.file), f"{below}*"]

        def snapshot(names: list[str], ignored: list[str], revision: str | None) -> Path:
            return Path(snapshot_download(
                self.repo, revision=revision, allow_patterns=names, ignore_patterns=ignored,
                local_files_only=local_files_only,
            ))  # fmt: skip

        ignored = [f"{below}{pattern}" for pattern in (*_UNREAD, *_PICKLES)]
        root = snapshot(wanted, ignored, self.revision or None)
        if pickles := self._pickles(root.name):
            root = snapshot([escape(name) for name in pickles], [], root.name)
        path = root / self.file
        if path.exists():
            return path
        return None

    def _pickles(self, commit: str) -> list[str]:
        """The pickles below the file or folder in folders without safetensors, by the cache's
        listing of a commit.
        """
        from huggingface_hub import get_cached_repo_tree
        from huggingface_hub.errors import CachedRepoTreeNotFoundError

        below = f"{self.file}/" if self.file else ""
        try:
            listed = [file.path for file in get_cached_repo_tree(self.repo, revision=commit)]
        except CachedRepoTreeNotFoundError:  # another program has filled the cache
            return []
        names = [
            PurePosixPath(name.removeprefix(below)) for name in listed if name.startswith(below)
        ]
        safe = {name.parent for name in names if name.suffix == ".safetensors"}
        read = [
            name
            for name in names
            if not any(fnmatchcase(str(name), pattern) for pattern in _UNREAD)
        ]
        return [
            f"{below}{name}"
            for name in read
            if f"*{name.suffix}" in _PICKLES and name.parent not in safe
        ]


def local_path(reference: str) -> str:
    """The path of a reference's files in the cache; the reference itself if they are not there.

    Raises:
        ValueError: the reference is malformed.
    """
    cached = HubFile.parse(reference).cached()
    if cached is None:
        return reference
    return str(cached)


def reference_of(path: str) -> str:
    """The reference, with its commit, of a path in a cache of the Hub; any other path as it is."""
    found = _CACHED.search(path)
    if found is None:
        return path
    return str(HubFile(f"{found['org']}/{found['name']}", found["file"] or "", found["commit"]))


def on_this_machine(path: str) -> str:
    """The path in this machine's cache of a reference, or of a path in another machine's cache; the
    reference if the cache does not have it. Any other path as it is.
    """
    reference = reference_of(path)
    if not reference.startswith(SCHEME) or Path(path).exists():
        return path
    return local_path(reference)
