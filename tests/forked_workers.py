"""A pytest plugin: several processes share the tests, file by file. `pytest -p tests.forked_workers --workers 4`.

The first process imports everything and collects the tests once, then forks the others, which inherit all of it. Each
takes the next file when it has finished one, so that fixtures of a module or a process are made once there, and sends
its reports to the first process. If a process dies, its tests fail with the number of its signal.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import struct
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

import pytest

_INDEX = struct.Struct("i")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--workers", type=int, default=1, metavar="N", help="processes that share the tests")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    options = session.config.option
    failed_collection = session.testsfailed and not options.continue_on_collection_errors
    if options.workers == 1 or options.collectonly or failed_collection or not session.items:
        return None  # pytest's own loop
    assert threading.active_count() == 1, f"a module started a thread: {threading.enumerate()}"
    files = [list(items) for _, items in itertools.groupby(session.items, lambda item: item.path)]
    session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # one for all
    queue, queue_end = os.pipe()
    os.write(queue_end, b"".join(map(_INDEX.pack, range(len(files)))))
    os.close(queue_end)
    workers = dict(_fork(session, files, queue) for _ in range(min(options.workers, len(files))))
    try:
        _report(session, workers)
    finally:
        for pid in workers.values():  # that have not ended: the first process was interrupted
            os.kill(pid, signal.SIGINT)
            os.waitpid(pid, 0)
    return True


def _fork(session: pytest.Session, files: list[list[pytest.Item]], queue: int) -> tuple[Connection, int]:
    """Start a process that runs files; gives the end of its pipe and its id."""
    receiver, sender = Pipe(duplex=False)
    sys.stdout.flush()
    sys.stderr.flush()
    if pid := os.fork():
        sender.close()
        return receiver, pid
    os.setpgrp()  # Ctrl-C reaches the first process alone, which interrupts the others
    try:
        with contextlib.suppress(KeyboardInterrupt):
            _run(session, files, queue, sender)
    except BaseException:
        sender.send(("error", traceback.format_exc()))
    finally:
        sender.close()
        os._exit(0)  # not back into pytest's loop


def _run(session: pytest.Session, files: list[list[pytest.Item]], queue: int, sender: Connection) -> None:
    """Run the next file until none is left, in a forked process."""
    config = session.config
    capture = config.pluginmanager.getplugin("capturemanager")
    if capture is not None:  # its files are the first process's
        capture.stop_global_capturing()
        capture.start_global_capturing()
    config.pluginmanager.unregister(name="terminalreporter")
    config.pluginmanager.register(_Sender(config, sender))
    try:
        while index := os.read(queue, _INDEX.size):
            items = files[_INDEX.unpack(index)[0]]
            for item, following in zip(items, [*items[1:], session], strict=True):  # the file's fixtures end with it
                config.hook.pytest_runtest_protocol(item=item, nextitem=following)
    finally:
        session._setupstate.teardown_exact(None)


class _Sender:
    """Sends what pytest reports in a forked process to the first one."""

    def __init__(self, config: pytest.Config, sender: Connection) -> None:
        self.config, self.sender = config, sender

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self.config.hook.pytest_report_to_serializable(config=self.config, report=report)
        self.sender.send(("report", data))

    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage, when: str, nodeid: str) -> None:
        text = f"{warning_message.category.__name__}: {warning_message.message}"
        facts = {"message": text, "filename": warning_message.filename, "lineno": warning_message.lineno}
        self.sender.send(("warning", {"facts": facts, "when": when, "nodeid": nodeid}))


def _report(session: pytest.Session, workers: dict[Connection, int]) -> None:
    """Pass on what the processes report until all have ended; tests without a result fail.

    Raises:
        Session.Failed: as many tests have failed as --maxfail allows.
    """
    unfinished = {item.nodeid: item for item in session.items}
    problems: list[str] = []
    for pid, kind, data in _messages(workers):
        if kind == "report":
            report = session.config.hook.pytest_report_from_serializable(config=session.config, data=data)
            session.config.hook.pytest_runtest_logreport(report=report)
            if report.when == "teardown":
                unfinished.pop(report.nodeid)
        elif kind == "warning":
            message = warnings.WarningMessage(Warning(data["facts"].pop("message")), Warning, **data.pop("facts"))
            arguments = {"warning_message": message, "location": None, **data}
            session.config.hook.pytest_warning_recorded.call_historic(kwargs=arguments)
        else:
            problems.append(f"process {pid}: {data}")
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
    for nodeid, item in unfinished.items():
        text = "\n".join(problems) or "no process ran it"
        report = pytest.TestReport(nodeid, item.location, {}, "failed", text, "call")
        session.config.hook.pytest_runtest_logreport(report=report)
    if problems and not unfinished:
        raise session.Failed("\n".join(problems))


def _messages(workers: dict[Connection, int]) -> Iterator[tuple[int, str, Any]]:
    """Each process's id and message, until all have ended and been removed; the last says how, unless it ended well."""
    while workers:
        for connection in wait(list(workers)):
            assert isinstance(connection, Connection)
            try:
                yield workers[connection], *connection.recv()
            except EOFError:
                pid = workers.pop(connection)
                if code := os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
                    yield pid, "error", f"ended with {code}"
