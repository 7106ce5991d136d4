"""Databases and files that several processes share: the program whose tables they have, and the
creation of tables.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.store.locks import waiting_lock
from search_spaces.paths import local_path

if TYPE_CHECKING:
    from sqlalchemy import Engine

OPTUNA = "Optuna"
MLFLOW = "MLflow"
_OTHER = "another program"
_MLFLOW_TABLES = {"experiments", "runs"}
_OPTUNA_REVISION = re.compile(r"v\d")  # those of MLflow are hexadecimal
_SQLITE = "sqlite"
_POSTGRESQL = "postgresql"
_SQLITE_HEADER = b"SQLite format 3\0"
_LOCK_KEY = 0x5F0C_4715  # of PostgreSQL's advisory lock; an arbitrary number

# A database that was restarted or is away is noticed. libpq waits for a dead machine for hours;
# times in s, one in ms.
_TIMEOUTS = {
    "connect_timeout": 8,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
}
_TIMEOUTS |= {"tcp_user_timeout": 20_000}
_OPTIONS: Mapping[str, dict[str, Any]] = {
    _POSTGRESQL: {"pool_pre_ping": True, "connect_args": _TIMEOUTS},
    "mysql": {"pool_pre_ping": True, "connect_args": {"connect_timeout": 8}},
}


def expand_home(url: str) -> str:
    """The URL of a SQLite file, such as sqlite:///~/mlflow.db, with the path of the home folder:
    SQLAlchemy and MLflow would make a folder `~`. Others are returned as they are.

    Raises:
        ValueError: it starts with the home folder of an unknown user.
    """
    scheme, sign, path = url.partition(":///")
    if not (sign and path.startswith("~") and _backend(f"{scheme}://") == _SQLITE):
        return url
    user, slash, rest = path.partition("/")
    home = str(local_path(user)).replace("%", "%25").replace("?", "%3F")
    return f"{scheme}{sign}{home}{slash}{rest}"


def engine_options(url: str) -> dict[str, Any] | None:
    """SQLAlchemy's options for a database; None for those without any."""
    return _OPTIONS.get(_backend(url))


def local_file(url: str) -> Path | None:
    """The file of a path or of a SQLite URL; None for other databases, and for one in memory."""
    if "://" not in url:
        return local_path(url)
    if _backend(url) != _SQLITE:
        return None
    from sqlalchemy import make_url

    name = make_url(url).database
    return Path(name) if name and name != ":memory:" else None


@contextmanager
def sole_creator(url: str) -> Iterator[None]:
    """Run the block in one of the processes that open a new database or file at once, while the
    others wait.

    Optuna and MLflow look for tables and then create them, so two processes would create them
    twice. Supports files and PostgreSQL; elsewhere the block runs at once.

    Raises:
        OSError, sqlalchemy.exc.SQLAlchemyError: no access.
    """
    file = local_file(url)
    if file is not None:
        place = file.resolve()  # one lock, however the file is spelled
        with waiting_lock(place.with_name(f".{place.name}.creating")):
            yield
    elif _backend(url) == _POSTGRESQL:
        from sqlalchemy import text

        with _engine(url).begin() as connection:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK_KEY})
            yield
    else:
        yield


def has_tables(url: str, program: str) -> bool:
    """Whether a database has the tables of a program, Optuna or MLflow. Reads only; a missing file
    stays missing.

    Raises:
        ValueError: it has those of another program, or the file is not a SQLite database.
        ImportError, sqlalchemy.exc.SQLAlchemyError: no driver, or the database cannot be read.
    """
    owner = _find_owner(url)
    if owner not in (None, program):
        raise ValueError(
            f"this database has the tables of {owner}, and {program} needs one of its own; give "
            "another"
        )
    return owner is not None


def _find_owner(url: str) -> str | None:
    """The program whose tables a database has, by Alembic's table, of which there is one; None if
    it has none.
    """
    from sqlalchemy import inspect, text

    file = local_file(url)
    if file is not None and file.is_file():
        with open(file, "rb") as opened:
            if opened.read(len(_SQLITE_HEADER)) not in (b"", _SQLITE_HEADER):
                raise ValueError(f"{file} is not a SQLite database; give another")
    elif file is not None and file.parent.is_dir() and not file.exists():
        return None
    with _engine(url).connect() as connection:
        tables, revision = set(inspect(connection).get_table_names()), None
        if "alembic_version" in tables:
            revision = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    if _OPTUNA_REVISION.match(str(revision)) or (revision is None and "version_info" in tables):
        return OPTUNA
    if tables >= _MLFLOW_TABLES:
        return MLFLOW
    return None if revision is None else _OTHER


def may_create_tables(url: str) -> bool:
    """Whether the user of a PostgreSQL database may create tables in it. True for other databases,
    without a check.
    """
    from sqlalchemy import text

    if _backend(url) != _POSTGRESQL:
        return True
    with _engine(url).connect() as connection:
        return bool(
            connection.scalar(text("SELECT has_schema_privilege(current_schema(), 'CREATE')"))
        )


def is_same_database(url: str, other: str) -> bool:
    """Whether two paths or URLs name one file, however it is spelled, or one database at the same
    address.
    """
    from sqlalchemy import make_url
    from sqlalchemy.exc import SQLAlchemyError

    try:
        files = local_file(url), local_file(other)
        if files[0] is not None and files[1] is not None:
            return files[0].resolve() == files[1].resolve()
        if files != (None, None):
            return False
        first, second = (
            (u.get_backend_name(), u.host, u.port, u.database) for u in map(make_url, (url, other))
        )
        return first == second
    except (SQLAlchemyError, OSError, ValueError, RuntimeError):
        # not a path or URL; opening it says so
        return False


def _engine(url: str) -> Engine:
    """A connection of its own for every use."""
    from sqlalchemy import NullPool, create_engine

    return create_engine(
        url, poolclass=NullPool, connect_args=(engine_options(url) or {}).get("connect_args", {})
    )


def _backend(url: str) -> str:
    return url.partition("://")[0].partition("+")[0].lower()
