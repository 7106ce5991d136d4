"""A PostgreSQL server of the tests' own, on the loopback, which can be stopped and started
again.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fakes.ports import HOST, claim_port

USER, PASSWORD = "specfrontier", "hunter22-postgres"
_DEBIAN = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
_START_TIMEOUT_S = 600.0


class PostgreSQL:
    """A server whose data is in `folder`. It refuses to run as root, and then runs as the user of
    Debian's package.
    """

    def __init__(self, folder: Path, programs: Path) -> None:
        self.folder, self._programs, self.port = folder, programs, claim_port()
        self._account: str | None = None
        if os.geteuid() == 0:
            self._account = next(name for name in ("postgres", "nobody") if _exists(name))
            shutil.chown(folder, self._account)
        password = folder / "password"
        password.write_text(PASSWORD)
        if self._account:
            shutil.chown(password, self._account)
        self._run(
            "initdb",
            "-D",
            "data",
            "-U",
            USER,
            "-E",
            "UTF8",
            "-A",
            "scram-sha-256",
            "--pwfile",
            "password",
            "--no-sync",
        )

    def url(self, database: str, password: str = PASSWORD) -> str:
        return f"postgresql://{USER}:{password}@{HOST}:{self.port}/{database}"

    def start(self) -> None:
        options = f"-p {self.port} -h {HOST} -k {self.folder} -c fsync=off"
        self._run(
            "pg_ctl",
            "-D",
            "data",
            "-w",
            "-t",
            str(_START_TIMEOUT_S),
            "-l",
            "log",
            "-o",
            options,
            "start",
        )

    def stop(self) -> None:
        """Ends all connections at once."""
        self._run("pg_ctl", "-D", "data", "-w", "-m", "fast", "stop")

    def create(self, database: str) -> str:
        """A new database's URL."""
        self._run("createdb", "-h", HOST, "-p", str(self.port), "-U", USER, database)
        return self.url(database)

    def _run(self, program: str, *arguments: str) -> None:
        environment = os.environ | {"PGPASSWORD": PASSWORD, "LC_ALL": "C"}
        done = subprocess.run(
            [str(self._programs / program), *arguments],
            cwd=self.folder,
            env=environment,
            user=self._account,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # the server inherits it: a pipe would stay open
            stderr=subprocess.DEVNULL,
            check=False,
        )
        log = self.folder / "log"
        assert done.returncode == 0, (
            program,
            done.returncode,
            log.read_text() if log.exists() else "",
        )


def _exists(account: str) -> bool:
    try:
        pwd.getpwnam(account)
    except KeyError:
        return False
    return True


@contextmanager
def postgresql() -> Iterator[PostgreSQL]:
    """A running server; skips the test where PostgreSQL is not installed."""
    pytest.importorskip("psycopg", reason="no psycopg: pip install 'psycopg[binary]'")
    found = shutil.which("initdb")
    programs = Path(os.path.realpath(found)).parent if found else next(iter(_DEBIAN), None)
    if programs is None or not (programs / "postgres").exists():
        pytest.skip("PostgreSQL's server is not installed")
    # sockets' paths must be short
    with tempfile.TemporaryDirectory(prefix="sf-pg-", dir="/tmp") as folder:
        server = PostgreSQL(Path(folder), programs)
        server.start()
        try:
            yield server
        finally:
            if (server.folder / "data" / "postmaster.pid").exists():
                server.stop()
