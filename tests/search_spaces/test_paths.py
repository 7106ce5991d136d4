"""Paths as users write them: which are read, and which are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from search_spaces.paths import local_path


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("s3://bucket/x", "s3://... is not a path"),
        ("s3:/bucket/x", "write s3://bucket/x"),
        ("file://host/x", "names no host"),
        ("file://", "names no file"),
        ("file:///a#b", "%23"),
        ("~nobody-here", "full path"),
        ("$HOME", "./$HOME"),
        ("${HOME}/x", "./${HOME}"),
    ],
)
def test_what_is_not_a_path_is_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError) as caught:
        local_path(text)
    assert words in str(caught.value)


def test_relative_paths_have_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert local_path("a", Path("folder")) == Path("folder/a")
    assert local_path("./~", Path("folder")) == Path("folder/~")
    assert local_path("./~", Path()) == tmp_path / "~"
    assert local_path("~", Path("folder")) == tmp_path / "home"
    assert local_path("file:///a", Path("folder")) == local_path("/a", Path("folder")) == Path("/a")


def test_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(home := tmp_path / "home"))
    assert local_path("~") == home
    assert local_path("~/a b") == home / "a b"
    assert local_path(f"file://{home}/a%20b%23") == home / "a b#"
    assert local_path("FILE://localhost/a") == Path("/a")
    for plain in ("a", "a/$HOME", "-", "a~", "/x:y", "a?b#c"):
        assert local_path(plain) == Path(plain)
    for name in ("~", "$HOME"):
        found = local_path(f"./{name}/x")
        assert local_path(found) == found == Path.cwd() / name / "x"
