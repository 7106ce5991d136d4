"""A server on the loopback that speaks the Hugging Face Hub's protocol, as far as downloads need
it.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import unquote, urlsplit

import pytest

_MISSING, _GATED, _REVISION, _ENTRY = (
    "RepoNotFound",
    "GatedRepo",
    "RevisionNotFound",
    "EntryNotFound",
)

_Answer: TypeAlias = tuple[int, bytes, dict[str, str]]


@dataclass
class HubServer:
    """repos: by ORG/NAME, their commits, oldest first; `main` is the last one, and a tag is any
    other name.
    """

    endpoint: str = ""
    repos: dict[str, dict[str, Mapping[str, bytes]]] = field(default_factory=dict)
    tags: dict[tuple[str, str], str] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)
    fetched: list[str] = field(default_factory=list)
    failing: set[str] = field(default_factory=set)

    def commit(self, repo: str, files: Mapping[str, bytes]) -> str:
        """Add a commit with exactly these files; returns its hash."""
        commits = self.repos.setdefault(repo, {})
        name = hashlib.sha1(f"{repo} {len(commits)}".encode()).hexdigest()
        commits[name] = dict(files)
        return name

    def find(self, repo: str, revision: str) -> str | None:
        """The commit of a revision."""
        commits = self.repos[repo]
        return [*commits][-1] if revision == "main" else self.tags.get((repo, revision), revision)


def _handler(hub: HubServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            status, data, headers = self._answer()
            self.send_response(status)
            for name, value in ({"Content-Length": str(len(data))} | headers).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        def _answer(self) -> _Answer:
            parts = unquote(urlsplit(self.path).path).strip("/").split("/")
            is_api = parts[:2] == ["api", "models"]
            repo = "/".join(parts[2:4] if is_api else parts[:2])
            what, revision, *rest = parts[4:] if is_api else parts[2:]
            if repo not in hub.repos:
                return _refuse(401, _MISSING)
            if (
                repo in hub.tokens
                and self.headers.get("Authorization") != f"Bearer {hub.tokens[repo]}"
            ):
                return _refuse(403, _GATED)
            commit = hub.find(repo, revision)
            if commit not in hub.repos[repo]:
                return _refuse(404, _REVISION)
            files = hub.repos[repo][commit]
            if what == "revision":
                return _plain(
                    {"id": repo, "sha": commit, "siblings": [{"rfilename": name} for name in files]}
                )
            if what == "tree":
                return _plain(
                    [
                        {
                            "type": "file",
                            "path": name,
                            "size": len(data),
                            "oid": hashlib.sha1(data).hexdigest(),
                        }
                        for name, data in files.items()
                    ]
                )
            name = "/".join(rest)
            if name not in files:
                return _refuse(404, _ENTRY, commit)
            if self.command == "GET":
                if name in hub.failing:
                    return _refuse(403, "")
                hub.fetched.append(f"{repo}/{name}")
            data = files[name]
            return (
                200,
                data,
                {"X-Repo-Commit": commit, "ETag": f'"{hashlib.sha1(data).hexdigest()}"'},
            )

    return Handler


def _plain(value: object) -> _Answer:
    return 200, json.dumps(value).encode(), {"Content-Type": "application/json"}


def _refuse(status: int, code: str, commit: str = "") -> _Answer:
    return status, b"{}", {"X-Error-Code": code} | ({"X-Repo-Commit": commit} if commit else {})


@contextmanager
def hub_server(cache: Path) -> Iterator[HubServer]:
    """A server without repositories, which `huggingface_hub` in this process uses, with a cache of
    its own.
    """
    from huggingface_hub import constants

    hub = HubServer()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constants, "ENDPOINT", hub.endpoint)
        patch.setattr(
            constants,
            "HUGGINGFACE_CO_URL_TEMPLATE",
            hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}",
        )
        patch.setattr(constants, "HF_HUB_CACHE", str(cache))
        patch.setattr(constants, "HF_HUB_OFFLINE", False)
        for name, value in (
            ("HF_ENDPOINT", hub.endpoint),
            ("HF_HUB_CACHE", str(cache)),
            ("HF_HUB_OFFLINE", "0"),
        ):
            patch.setenv(name, value)
        patch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        yield hub
    server.shutdown()
    server.server_close()
