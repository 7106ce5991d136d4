"""Requests to this machine go past proxies, and the user's own exceptions stay."""

from __future__ import annotations

import os

import pytest
import requests

from orchestrator.proxies import without_proxy


@pytest.mark.parametrize(
    ("given", "excepted", "through"),
    [
        ({}, ("localhost", "127.0.0.1", "[::1]", "10.0.0.7"), ("10.0.0.8", "example.org")),
        ({"no_proxy": "example.org"}, ("127.0.0.1", "example.org"), ("10.0.0.8",)),
        (
            {"NO_PROXY": " example.org , b.org"},
            ("127.0.0.1", "example.org", "b.org"),
            ("10.0.0.8",),
        ),
        ({"no_proxy": "*"}, ("127.0.0.1", "example.org", "10.0.0.7"), ()),
    ],
)
def test_exceptions(
    given: dict[str, str],
    excepted: tuple[str, ...],
    through: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in (given | {"http_proxy": "http://proxy:1"}).items():
        monkeypatch.setenv(name, value)
    for name, value in without_proxy("10.0.0.7").items():
        monkeypatch.setenv(name, value)
    assert without_proxy("10.0.0.7").get("no_proxy", "*") == os.environ["no_proxy"]
    for hosts, expected in ((excepted, None), (through, "http://proxy:1")):
        for host in hosts:
            assert (
                requests.utils.get_environ_proxies(f"http://{host}:5000/").get("http") == expected
            ), host
