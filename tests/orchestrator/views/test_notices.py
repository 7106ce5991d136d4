"""Notices to a webhook: what they say, when they are sent, and that a webhook that is away delays
nothing.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from orchestrator.front.choice import recommend
from orchestrator.front.front import front_of
from orchestrator.launch.supervise import _resume_command
from orchestrator.options import command_line
from orchestrator.store import events
from orchestrator.store.identity import read_identity
from orchestrator.store.progress import SweepProgress
from orchestrator.store.records import read_trials
from orchestrator.store.sweep import Sweep
from orchestrator.views import follower
from orchestrator.views.follower import Views
from orchestrator.views.notices import Notices, check_webhook
from tests.fakes.command_line import error_of, specfrontier
from tests.fakes.local_pool import local_launches
from tests.fakes.real_sweeps import SWEEP, SweepRun
from tests.fakes.synthetic_sweeps import write_sweep
from tests.fakes.waiting import HANG_S, give_time, wait_until
from workers.data.storage import Storage


@dataclass
class Webhook:
    """Answers with `status`, and with `later` from the second request on; not before `answers` is
    set.
    """

    url: str = ""
    status: int = 200
    later: int | None = None
    got: list[dict[str, Any]] = field(default_factory=list)
    answers: threading.Event = field(default_factory=threading.Event)


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    hook = Webhook()
    hook.answers.set()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def do_POST(self) -> None:
            hook.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            status = hook.status if hook.later is None or len(hook.got) == 1 else hook.later
            hook.answers.wait()
            self.send_response(status)
            self.send_header("Location", hook.url)
            self.end_headers()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    hook.url = f"http://127.0.0.1:{server.server_address[1]}/services/secret"
    yield hook
    hook.answers.set()
    server.shutdown()
    server.server_close()


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine is not an error, and an attempt is repeated soon."""
    monkeypatch.setattr("orchestrator.views.notices._TIMEOUT_S", HANG_S)
    give_time(monkeypatch, Notices)
    monkeypatch.setattr(follower, "RETRY_S", (0.02, 0.1))


def write_and_open(folder: Path) -> Sweep:
    write_sweep(folder, trials=12)
    return Sweep.open(folder)


def notices_of(hook: Webhook, folder: Path) -> Notices:
    storage, resume = Storage(folder), "specfrontier launch it --resume"
    return Notices(hook.url, "synthetic", storage, SweepProgress(), resume)


def followed(folder: Path, hook: Webhook) -> tuple[Views, Notices]:
    """A sweep's views, which are notices alone, started."""
    write_sweep(folder, trials=12)
    storage = Storage(str(folder))
    notices = notices_of(hook, folder)
    views = Views(storage, [notices])
    identity = read_identity(storage)
    assert identity is not None
    views.start(identity, read_trials(storage))
    return views, notices


def test_the_summary_at_the_end(webhook: Webhook, tmp_path: Path) -> None:
    views, notices = followed(tmp_path, webhook)
    notices.progress.update(events.End("finished"))
    assert views.end("finished") == []
    (told,) = webhook.got
    sweep = Sweep.open(tmp_path)
    assert told["state"] == "finished"
    assert told["sweep"] == "synthetic"
    assert "resume" not in told
    assert sum(told["trials"].values()) == len(sweep.records)
    best = recommend(front_of([sweep])).choices["best"]
    assert told["recommended"]["best"]["number"] == best.number
    assert told["recommended"]["best"]["metrics"]["speedup"]["value"] == best["speedup"]
    assert "synthetic" in told["text"]


def test_a_lost_cluster_and_a_failure(webhook: Webhook, tmp_path: Path) -> None:
    views, notices = followed(tmp_path, webhook)
    notices.progress.update(events.Launch())
    notices.progress.update(
        events.Launch(note="Ray on this machine lost its raylet; starting another")
    )
    views.update(read_trials(Storage(str(tmp_path)))[0])
    wait_until(lambda: webhook.got)
    notices.progress.update(events.End("failed", "the store is full"))
    assert views.end("failed") == []
    lost, failed = webhook.got
    assert (lost["state"], failed["state"]) == ("cluster_lost", "failed")
    assert "raylet" in lost["cause"]
    assert failed["cause"] == "the store is full"
    assert failed["resume"] == "specfrontier launch it --resume"


def test_a_cluster_that_is_lost_while_another_one_is_told(webhook: Webhook, tmp_path: Path) -> None:
    notices = notices_of(webhook, tmp_path)
    sweep = write_and_open(tmp_path)
    notices.progress.update(events.Launch(note="the first"))
    webhook.answers.clear()
    told = threading.Thread(target=notices.update, args=(sweep,))
    told.start()
    wait_until(lambda: webhook.got)
    notices.progress.update(events.Launch(note="the second"))
    webhook.answers.set()
    told.join()
    notices.update(sweep)
    assert [lost["cause"] for lost in webhook.got] == ["the first", "the second"]


@pytest.mark.parametrize("status", [404, 302])
def test_an_answer_that_stays_the_same_is_not_asked_for_again(
    status: int, webhook: Webhook, tmp_path: Path
) -> None:
    webhook.status = status
    views, _ = followed(tmp_path, webhook)
    (problem,) = views.end("finished")
    assert str(status) in problem
    assert len(webhook.got) == 1


@pytest.mark.parametrize("status", [429, 503])
def test_an_answer_that_may_change_is_asked_for_again(
    status: int, webhook: Webhook, tmp_path: Path
) -> None:
    webhook.status, webhook.later = status, 200
    views, _ = followed(tmp_path, webhook)
    assert views.end("finished") == []
    assert len(webhook.got) == 2


def test_a_refused_notice_does_not_keep_the_end_back(webhook: Webhook, tmp_path: Path) -> None:
    notices = notices_of(webhook, tmp_path)
    sweep = write_and_open(tmp_path)
    notices.progress.update(events.Launch(note="lost"))
    webhook.status = 413
    notices.update(sweep)
    (note,) = notices.notes
    assert "413" in note
    assert "secret" not in note
    assert notices.may_recover, "a store that cannot be read at the end is read again"
    webhook.status = 200
    notices.update(sweep)
    notices.end(sweep, "finished")
    assert [told["state"] for told in webhook.got] == ["cluster_lost", "finished"]


def test_a_launch_that_ran_to_its_end_and_failed_is_told_as_failed(
    webhook: Webhook, tmp_path: Path
) -> None:
    views, notices = followed(tmp_path, webhook)
    notices.problem = "all trials except vanilla failed"
    assert views.end("finished") == []
    (told,) = webhook.got
    assert (told["state"], told["cause"]) == ("failed", notices.problem)
    assert "resume" not in told or told["resume"]


@pytest.mark.parametrize("hangs", [False, True])
def test_a_webhook_that_fails_or_hangs_is_named_without_its_path(
    hangs: bool, webhook: Webhook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing waits for it while the sweep runs, and the end waits for its time limit: it would
    hang here else.
    """
    for name in ("end_timeout_s", "short_timeout_s"):
        monkeypatch.setattr(Notices, name, 0.5)
    webhook.status = 500
    if hangs:
        webhook.answers.clear()
    views, notices = followed(tmp_path, webhook)
    notices.progress.update(events.Launch(note="lost"))
    for record in read_trials(Storage(str(tmp_path))):
        views.update(record)
    wait_until(lambda: webhook.got)
    (problem,) = views.end("finished")
    assert webhook.url.rpartition("/services")[0] in problem
    assert "secret" not in problem


def test_a_launch_tells_its_end_and_a_failure_before_it_was_a_sweep(
    webhook: Webhook, tmp_path: Path
) -> None:
    run = SweepRun(tmp_path, SWEEP)
    run.run_locally("--no-mlflow", "--trials", "2", "--notify", webhook.url)
    assert [told["state"] for told in webhook.got] == ["finished"]
    assert webhook.got[0]["trials"]["complete"] == 2
    log = (run.store / "events.jsonl").read_text()
    assert "secret" not in log, "the address may be a secret, and is no part of the sweep"
    other = SweepRun(tmp_path / "other", SWEEP)
    arguments = other.arguments("--no-mlflow", "--notify", webhook.url)
    with pytest.MonkeyPatch.context() as patch, local_launches():
        patch.setattr("orchestrator.launch.start._check_facts", broken)
        assert specfrontier(*arguments).code == 1
    assert webhook.got[1]["state"] == "failed"
    assert webhook.got[1]["cause"] == "no such machine"


def broken(*_: object) -> None:
    raise RuntimeError("no such machine")


def test_a_resumed_launch_that_fails_before_its_views_begin_is_told(
    webhook: Webhook, tmp_path: Path
) -> None:
    write_sweep(tmp_path, trials=2)
    notices = notices_of(webhook, tmp_path)
    notices.progress.update(events.End("failed", "other weights"))
    notices.post_early_failure("failed")
    assert [told["cause"] for told in webhook.got] == ["other weights"]
    views, notices = followed(tmp_path / "other", webhook)
    views.end("failed")
    notices.post_early_failure("failed")
    assert len(webhook.got) == 2, "once"


def test_a_stop_by_plateau_is_named(
    webhook: Webhook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "orchestrator.views.notices.plateau_notes", lambda sweep: ["no longer moves"]
    )
    views, _ = followed(tmp_path, webhook)
    views.end("finished")
    assert webhook.got[0]["cause"] == "no longer moves"


def test_a_redirect_is_an_error_and_is_not_followed(webhook: Webhook, tmp_path: Path) -> None:
    webhook.status = 302
    notices = notices_of(webhook, tmp_path)
    with pytest.raises(HTTPError) as caught:
        notices.end(write_and_open(tmp_path), "finished")
    assert notices.explain(caught.value) == "HTTP 302"
    assert len(webhook.got) == 1


def test_causes_have_no_credentials(webhook: Webhook, tmp_path: Path) -> None:
    notices = notices_of(webhook, tmp_path)
    notices.progress.update(events.End("failed", "no database at postgresql://me:secret@host/x"))
    notices.post_early_failure("failed")
    assert "secret" not in json.dumps(webhook.got)
    assert "postgresql" in webhook.got[0]["text"]


def test_a_server_that_speaks_no_http_does_not_hide_the_failure(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        asked = threading.Event()
        threading.Thread(
            target=answer_in_another_protocol, args=(server, asked), daemon=True
        ).start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/secret"
        Notices(url, "synthetic", Storage(tmp_path), SweepProgress(), "").post_early_failure(
            "failed"
        )
        assert asked.wait(HANG_S), "it was told, and what it answered is no error of the launch"


def answer_in_another_protocol(server: socket.socket, asked: threading.Event) -> None:
    connection, _ = server.accept()
    with connection:
        if connection.recv(1 << 16):
            asked.set()
        connection.sendall(b"220 mail.example.org ESMTP\r\n")


@pytest.mark.parametrize("form", [["--notify", "{}"], ["--notify={}"]])
def test_the_command_that_resumes_has_a_variable_for_the_address(form: list[str]) -> None:
    given = [word.format("https://hooks.example.org/services/secret") for word in form]
    called = command_line.set(["launch", "my sweep.yaml", *given])
    try:
        command = _resume_command()
    finally:
        command_line.reset(called)
    assert "secret" not in command
    shell = {"SPECFRONTIER_NOTIFY": "https://other", "PATH": os.environ["PATH"]}
    ran = subprocess.run(
        f"printf '%s\\n' {command}",
        shell=True,
        env=shell,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.splitlines()[:3] == ["specfrontier", "launch", "my sweep.yaml"]
    assert "https://other" in ran.stdout, "the shell sets it"


@pytest.mark.parametrize(
    "url",
    [
        "hooks.example.org/secret", "ftp://example.org/secret", "http://", "file:///etc/secret",
        "http://host:99999/secret", "http://host:port/secret", "http://[::1/secret", "https://user:secret@host/x",
        "http://host/se cret", "http://host/s\u00e9cret",
    ],
)  # fmt: skip
def test_what_is_no_webhook(url: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--notify") as error:
        check_webhook(url)
    assert "cret" not in str(error.value)
    assert "--notify" in error_of(
        "launch", "quickstart", "--out", str(tmp_path), "--notify", url, code=2
    )
