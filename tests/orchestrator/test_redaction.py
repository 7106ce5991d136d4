"""No credential of an address is shown: not of the URL itself, not of one inside a longer text."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from orchestrator.text import redact_file, without_credentials
from workers.data.storage import Storage

SECRET = "hunter22"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"postgresql://me:{SECRET}@db.lab:5432/optuna", "postgresql://***@db.lab:5432/optuna"),
        (f"mysql+pymysql://{SECRET}@db/optuna", "mysql+pymysql://***@db/optuna"),
        (f"https://me:p@{SECRET}@host/mlflow", "https://***@host/mlflow"),
        (f"s3://bucket/a?access_key=AK&secret_key={SECRET}&region=eu", "s3://bucket/a?access_key=***&secret_key=***&region=eu"),
        (f"https://h/x?X-Amz-Signature={SECRET}&X-Amz-Date=1#top", "https://h/x?X-Amz-Signature=***&X-Amz-Date=1#top"),
        (f"https://h/x?SAS_TOKEN={SECRET}", "https://h/x?SAS_TOKEN=***"),
        (f"no http://u:{SECRET}@h:5000/api nor http://u:{SECRET}@h2/", "no http://***@h:5000/api nor http://***@h2/"),
        (f"postgresql://me:a/{SECRET}@db:5432/optuna", "postgresql://***@db:5432/optuna"),
        (f"postgresql://me:a?{SECRET}#b@db/optuna", "postgresql://***@db/optuna"),
        (f"['s3://K:9/{SECRET}@b/x', 'http://h:5000', 'me@lab']", "['s3://***@b/x', 'http://h:5000', 'me@lab']"),
        ("http://h:5000/#/experiments/1 of me@lab", "http://h:5000/#/experiments/1 of me@lab"),
        ("s3://bucket/sweeps?region=eu-west-1", "s3://bucket/sweeps?region=eu-west-1"),
        ("sqlite:////home/me@lab/mlflow.db", "sqlite:////home/me@lab/mlflow.db"),
        ("/data/me@lab/study.log", "/data/me@lab/study.log"),
        ("clip_score >= 0.9 * vanilla", "clip_score >= 0.9 * vanilla"),
        ("", ""),
    ],
)  # fmt: skip
def test_addresses(text: str, shown: str) -> None:
    assert without_credentials(text) == shown
    assert SECRET not in shown


def test_once_is_enough() -> None:
    once = without_credentials(f"redis://:{SECRET}@h/0?password={SECRET}")
    assert SECRET not in once
    assert without_credentials(once) == once


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        (f"s3://AKID:{SECRET}@bucket/real", "s3://***@bucket/real"),
        (f"s3://bucket/real?secret_key={SECRET}", "s3://bucket/real?secret_key=***"),
    ],
)
def test_files_stay_of_their_kind(source: str, shown: str) -> None:
    def facts(address: str) -> dict[str, Any]:
        return {
            "reference": {"source": address, "count": 9},
            "metrics": ["fid", address],
            "seed": 0,
        }

    redacted = redact_file(
        "identity.json", json.dumps(facts(source), separators=(",", ":")).encode()
    )
    assert json.loads(redacted) == facts(shown)
    for flow in (True, False):
        redacted = redact_file(
            "sweep.yaml", yaml.safe_dump(facts(source), default_flow_style=flow).encode()
        )
        assert yaml.safe_load(redacted) == facts(shown)
    broken = redact_file("identity.json", f'{{"source": "{source}'.encode()).decode()
    assert broken == f'{{"source": "{shown}'


def test_files_without_credentials_are_left_as_they_are() -> None:
    files = {
        "sweep.yaml": b"seed:   1e-05 # mine\n",
        "identity.json": b'{"a":1}',
        "front.png": b"\x89",
    }
    for name, data in files.items():
        assert redact_file(name, data) == data
    comment = f"seed: 1 # s3://k:{SECRET}@bucket\n".encode()
    assert SECRET.encode() not in redact_file("sweep.yaml", comment)


@pytest.mark.parametrize(
    "uri",
    [
        f"s3://AKID:{SECRET}@bucket/a",
        f"s3://bucket/a?secret_key={SECRET}",
        f"gs://bucket/a?access_token={SECRET}",
    ],
)
def test_storages_show_no_more_than_this(uri: str) -> None:
    """The storage hides by parsing, this by pattern: neither shows what the other hides."""
    from pyarrow.fs import LocalFileSystem

    storage = Storage(uri, filesystem=LocalFileSystem())
    assert SECRET not in storage.display_name
    assert SECRET not in without_credentials(uri)
    assert without_credentials(storage.display_name) == storage.display_name
