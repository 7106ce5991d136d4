"""Notices of a sweep to a webhook: that it has ended, failed, or goes on after its cluster was
lost.
"""

from __future__ import annotations

import json
from contextlib import suppress
from http.client import HTTPException
from typing import Any, Final
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from orchestrator.front.choice import recommend
from orchestrator.front.front import front_of
from orchestrator.front.plateau import plateau_notes
from orchestrator.store.progress import SweepProgress
from orchestrator.store.sweep import Sweep
from orchestrator.text import counted, redact_values, without_credentials
from orchestrator.views.follower import Ending, View
from workers.data.storage import Storage

_TIMEOUT_S: Final = 5.0
_LOST: Final = "cluster_lost"
_BUSY: Final = (408, 425, 429)  # of the answers below 500 those that another attempt may change


class Notices(View[Sweep]):
    """Posts JSON: `text`, one sentence, which Slack and Mattermost show; the sweep's name and
    store; `state` (finished, failed, interrupted, cluster_lost) and its cause; numbers of trials;
    what the front recommends; how to resume.
    """

    end_timeout_s = 10.0
    short_timeout_s = _TIMEOUT_S

    def __init__(
        self, url: str, name: str, storage: Storage, progress: SweepProgress, resume: str
    ) -> None:
        super().__init__()
        self._url = url
        self._resume = resume
        self._facts = {"sweep": name, "store": without_credentials(storage.display_name)}
        self.progress = progress
        self._reported_clusters = 0  # lost ones that were posted
        self.problem: str | None = None  # with which a launch that ran to its end has failed
        self._is_followed = False  # as a view

    def update(self, source: Sweep) -> None:
        self._is_followed = True
        # another may be lost meanwhile
        while lost := self.progress.lost_clusters[self._reported_clusters :]:
            try:
                self._post(_LOST, lost[0], self._results(source))
            except HTTPError as error:
                if self.may_recover:
                    raise
                self.notes.append(
                    f"--notify: {host_of(self._url)}: a lost cluster was not told: "
                    f"{self.explain(error)}"
                )
                self.may_recover = True  # the next notice
            self._reported_clusters += 1

    def end(self, source: Sweep, how: Ending) -> None:
        reached = plateau_notes(source) if how == "finished" else []
        cause = self.problem or self._failure() or " ".join(reached)
        self._post("failed" if self.problem else how, cause, self._results(source))

    def post_early_failure(self, how: Ending) -> None:
        """Tell that a launch has failed before its views began, if the webhook responds. An
        interrupt is no failure.
        """
        if how == "failed" and not self._is_followed:
            with suppress(OSError, HTTPException):
                self._post(how, self._failure(), {})

    def _failure(self) -> str:
        """Why the launch failed; "" if it has not."""
        ended = self.progress.ended
        return "" if ended is None else ended.cause or ""

    def explain(self, error: Exception) -> str:
        return f"HTTP {error.code}" if isinstance(error, HTTPError) else super().explain(error)

    def describe(self, problem: str) -> str:
        return f"--notify: {host_of(self._url)} was not told: {problem}"

    def _post(self, state: str, cause: str, results: dict[str, Any]) -> None:
        happened = "lost its cluster" if state == _LOST else state
        text = f"specfrontier: sweep {self._facts['sweep']} {happened}"
        if cause:
            text += f": {cause}"
        if results:
            trials = results["trials"]
            counts = counted(trials["complete"], "complete trial")
            if trials["failed"]:
                counts += f", {trials['failed']} failed"
            text += f" ({counts})"
        facts = {"text": text, **self._facts, "state": state, "cause": cause, **results}
        if state != "finished":
            facts["resume"] = self._resume
        data = json.dumps(redact_values(facts)).encode()
        request = Request(self._url, data, {"Content-Type": "application/json"}, method="POST")
        self.may_recover = True
        try:
            build_opener(_NoRedirect).open(request, timeout=_TIMEOUT_S).close()
        except HTTPError as error:
            self.may_recover = error.code >= 500 or error.code in _BUSY
            raise

    def _results(self, sweep: Sweep) -> dict[str, Any]:
        records = sweep.records
        front = front_of([sweep])
        return {
            "trials": {
                "complete": sum(record.is_complete for record in records),
                "stopped": sum(record.is_stopped for record in records),
                "failed": sum(record.has_failed for record in records),
            },
            "objectives": [metric.name for metric in front.metrics],
            "recommended": recommend(front).to_mapping(),
        }


class _NoRedirect(HTTPRedirectHandler):
    """A redirect is an error: followed, a POST would become a GET without its data."""

    def redirect_request(self, *_: object) -> None:
        return None


def check_webhook(url: str) -> str:
    """The URL of a webhook, if it is one.

    Raises:
        ValueError: not an http or https address, which the message does not repeat: it may be a
            secret.
    """
    if not (url.isascii() and url.isprintable() and " " not in url):
        raise ValueError(
            "--notify: the address has spaces or other characters that must be percent-encoded"
        )
    try:
        parts = urlsplit(url)
        has_port = parts.port is None or parts.port > 0  # raises for others
        is_address = (
            parts.scheme in ("http", "https")
            and bool(parts.hostname)
            and has_port
            and "@" not in parts.netloc
        )
    except ValueError:  # of the port, or of brackets
        is_address = False
    if not is_address:
        raise ValueError(
            "--notify: give the http:// or https:// address of a webhook, without a user"
        )
    return url


def host_of(url: str) -> str:
    """The address without its path, which may be a secret."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"
