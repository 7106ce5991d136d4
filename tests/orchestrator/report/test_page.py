"""The report as a file: what is in it, that nothing in it can act, and that it is written whatever
a sweep lacks.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import math
import os
import re
import subprocess
import sys
import tomllib
import webbrowser
from collections.abc import Callable, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
import typer
import yaml
from PIL import Image
from pyarrow import fs
from typer.testing import CliRunner

from orchestrator.cli.report import report
from orchestrator.errors import CommandError
from orchestrator.front.front import front_of
from orchestrator.report.page import as_script_data, page_data, render, report_page, write_report
from orchestrator.report.sections import images
from orchestrator.report.sections.images import GRID_SIDE, embed_grids
from orchestrator.report.sections.setup import facts, searched
from orchestrator.report.trials import PageTrial, group_looks, groups
from orchestrator.store.files import write_sweep_text
from orchestrator.store.records import TrialRecord, write_trial
from search_spaces.presets import PRESETS
from search_spaces.trial import DecodingConfig
from specfrontier import Sweep
from tests.fakes.drawn_sweeps import write_drawn_sweep
from tests.fakes.png_files import without_pixels
from tests.fakes.synthetic_sweeps import write_sweep
from tests.fakes.waiting import HANG_S
from workers.data.storage import Storage

ROOT = Path(__file__).parents[3]
VENDOR = ROOT / "orchestrator" / "report" / "assets" / "vendor"
HOSTILE = (
    "<script>window.broken=1</script>",
    "</script><img src=x onerror=alert(1)>",
    "<!-- <script>",
    "]]>&lt;b>\u2028",
)


class Elements(HTMLParser):
    """The elements of a page with their attributes, and the text of each script."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            self.scripts[-1] += data


def data_of(page: str) -> dict[str, Any]:
    """The data that the page's script will read."""
    loaded: dict[str, Any] = json.loads(Elements(page).scripts[0])
    return loaded


def written(folder: Path, *changed: TrialRecord, **options: Any) -> dict[str, Any]:
    """The page's data for a synthetic sweep, some of its trials replaced."""
    write_sweep(folder, **options)
    for record in changed:
        write_trial(Storage(folder), record)
    return data_of(report_page(Storage(folder)))


def test_a_trial_is_in_the_page_with_its_numbers(tmp_path: Path) -> None:
    write_sweep(tmp_path, trials=12, repeated={9: 5})
    records = Sweep.open(tmp_path).records
    assert write_report(Storage(tmp_path)) == "report.html"
    data = data_of((tmp_path / "report.html").read_text("utf-8"))
    assert [trial["number"] for trial in data["trials"]] == list(range(12))
    identity = Sweep.open(tmp_path).identity
    for trial, record in zip(data["trials"], records, strict=True):
        shown = {name: [value, error] for name, (value, error, *_) in trial["metrics"].items()}
        assert shown == {name: [entry.value, entry.error] for name, entry in record.metrics.items()}
        for _, error, effects, noise, own, *_ in trial["metrics"].values():
            assert math.hypot(*effects, noise, own) == pytest.approx(error, rel=0.01), (
                "the parts make the whole"
            )
        assert (trial["label"], trial["state"], trial["cause"]) == (
            record.label,
            record.state,
            record.cause,
        )
        assert trial["lossless"] is record.is_lossless(identity)
        assert trial["duplicate_of"] == (
            None if record.duplicate_of is None else str(record.duplicate_of)
        )
    assert data["trials"][2]["description"] == "eagle-dyn(d5,w10,n58) add(k100,d0.1)"
    assert data["trials"][7]["cause"].startswith("OutOfMemoryError")


def test_the_page_allows_its_own_script_and_style_alone(tmp_path: Path) -> None:
    write_sweep(tmp_path, trials=6)
    page = report_page(Storage(tmp_path))
    elements = Elements(page)
    policy = next(
        a["content"]
        for tag, a in elements.found
        if a.get("http-equiv") == "Content-Security-Policy"
    )
    style = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    assert policy is not None
    assert len(elements.scripts) == 3
    assert len(style) == 1
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for kind, texts in (("script", elements.scripts[1:]), ("style", style)):
        digests = [
            base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts
        ]
        allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
        assert f"{kind}-src {allowed};" in policy
    assert not re.findall(r"\{\{\w+\}\}", page)


def test_the_libraries_come_with_their_licences(tmp_path: Path) -> None:
    write_sweep(tmp_path, trials=2)
    libraries = Elements(report_page(Storage(tmp_path))).scripts[1]
    terms = {path for path in VENDOR.iterdir() if path.suffix == ".LICENSE"}
    assert {path.name for path in terms} == {"d3.LICENSE", "plot.LICENSE"}
    for path in VENDOR.glob("*.*"):
        assert (path.read_text("utf-8") in libraries) is (path.name != "SOURCES.txt")
    for holder in (
        "2010-2026 Mike Bostock", "Observable, Inc.", "2013 Mikola Lysenko", "2013-2015 Mikola Lysenko", "Mapbox",
        "Robert Penner", "Cynthia Brewer", "Charles Karney", "jStat", "Vladimir Agafonkin",
    ):  # fmt: skip
        assert holder in libraries
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert terms | {ROOT / "LICENSE"} == {
        path for name in project["license-files"] for path in ROOT.glob(name)
    }


def test_the_libraries_are_those_of_their_packages() -> None:
    lines = [
        line.split()
        for line in (VENDOR / "SOURCES.txt").read_text("utf-8").split("\n\n")[1].splitlines()
    ]
    digests = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in VENDOR.glob("*.js")
    }
    assert {name: digest for name, *_, digest in lines} == digests
    for _, package, archive, *_ in lines:
        name, _, version = package.rpartition("@")
        assert archive == f"/{name}/-/{name.rpartition('/')[2]}-{version}.tgz"
        assert version in "".join(path.read_text("utf-8")[:99] for path in VENDOR.glob("*.js"))


def test_the_page_names_no_other_place(tmp_path: Path) -> None:
    write_sweep(tmp_path, trials=6)
    page = report_page(Storage(tmp_path))
    libraries = Elements(page).scripts[1]
    assert set(re.findall(r"https?://[^\s\"'<]*", page.replace(libraries, ""))) == {
        "http://www.w3.org/2000/svg"
    }
    named = {urlsplit(url).netloc for url in re.findall(r"https?://[^\s\"'<>]*", libraries)}
    expected = {"www.w3.org", "d3js.org", "www.apache.org", "unlicense.org"}
    assert named == expected, "namespaces, and the addresses in comments"
    for tag, attributes in Elements(page).found:
        for name in ("src", "href", "action", "data"):
            assert str(attributes.get(name, "#")).startswith(("#", "data:")), f"{tag} {name}"


@pytest.mark.parametrize("text", HOSTILE)
def test_what_users_give_cannot_leave_the_data(tmp_path: Path, text: str) -> None:
    plain = Elements(_hostile_page(tmp_path / "plain", "harmless"))
    page = _hostile_page(tmp_path / "hostile", text)
    elements = Elements(page)
    assert [tag for tag, _ in elements.found] == [tag for tag, _ in plain.found]
    assert not set("<>&\u2028") & set(elements.scripts[0])
    data = data_of(page)
    trials = data["trials"]
    assert [data["name"], data["about"], trials[1]["label"], trials[7]["cause"]] == [text] * 4
    assert data["sections"]["images"]["data"]["captions"] == [text] * 3


def _hostile_page(folder: Path, text: str) -> str:
    """The page of a sweep that says `text` wherever a user may say something, and in its name,
    which readers refuse.
    """
    records = write_drawn_sweep(folder, [text] * 3, trials=9, about=text)
    storage = Storage(folder)
    write_trial(storage, replace(records[1], label=text))
    write_trial(storage, replace(records[7], cause=text))
    sweep = Sweep.open(storage)
    return render(page_data([replace(sweep, identity=replace(sweep.identity, name=text))]))


def test_script_data_is_still_the_same_data() -> None:
    data = {"a</script>": ["<!--", "&amp;", "\u2028\u2029", "é", 1.5, None]}
    text = as_script_data(data)
    assert json.loads(text) == data
    assert not set("<>&\u2028\u2029") & set(text)


@pytest.mark.parametrize(
    ("objectives", "expected"),
    [
        (["speedup", "fid"], ("speedup", "fid")),
        (["fid", "speedup"], ("speedup", "fid")),
        (["step_compression", "drift", "fid"], ("step_compression", "drift")),
        (["speedup"], ("speedup", "fid")),
        ([], ("speedup", "fid")),
        (["speedup", "gone"], ("speedup", "latency")),
    ],
)
def test_the_metrics_shown_first(
    tmp_path: Path, objectives: Sequence[str], expected: tuple[str, str]
) -> None:
    data = written(
        tmp_path,
        trials=6,
        objectives=[{"metric": name, "direction": "minimize"} for name in objectives],
    )
    assert (data["axes"]["x"], data["axes"]["y"]) == expected
    assert data["metrics"][expected[0]]["direction"] == "maximize", (
        "a metric's direction is its own"
    )


def test_only_metrics_that_were_measured_are_offered(tmp_path: Path) -> None:
    records = write_sweep(tmp_path, trials=6)
    kept = [
        replace(r, metrics={m: v for m, v in r.metrics.items() if m in ("drift", "fid")})
        for r in records
    ]
    data = written(tmp_path, *kept, trials=6)
    assert data["axes"] == {"names": ["fid", "drift"], "x": "fid", "y": "drift", "z": None}


def test_a_sweep_without_finished_trials_has_a_page(tmp_path: Path) -> None:
    data = written(tmp_path, trials=0)
    assert data["trials"] == []
    assert data["axes"]["x"] == "speedup"


def test_a_setting_that_cannot_be_is_listed_with_its_cause(tmp_path: Path) -> None:
    data = written(tmp_path, TrialRecord(6, "", "failed", None, cause="no such tree"), trials=6)
    assert data["trials"][6]["cause"] == "no such tree"
    assert data["trials"][6]["description"] == "invalid setting"
    assert "" not in data["configs"]


def test_configs_are_what_generate_takes(tmp_path: Path) -> None:
    records = write_sweep(tmp_path, trials=12)
    configs = data_of(report_page(Storage(tmp_path)))["configs"]
    for record in records:
        assert DecodingConfig.from_mapping(yaml.safe_load(configs[record.digest])) == record.config


def test_the_share_of_redraws_is_that_of_the_front_command(tmp_path: Path) -> None:
    data = written(tmp_path, trials=20)
    marked = Sweep.open(tmp_path).front(everything=True)
    expected = dict(
        zip(marked["number"].to_pylist(), marked["confidence"].to_pylist(), strict=True)
    )
    assert len(expected) > 5
    assert {
        trial["number"]: trial["confidence"]
        for trial in data["trials"]
        if trial["confidence"] is not None
    } == expected


def test_a_broken_constraint_is_named(tmp_path: Path) -> None:
    write_sweep(tmp_path, trials=6, constraints=["drift <= 0.01", "fid <= 9"])
    write_report(Storage(tmp_path))
    data = data_of((tmp_path / "report.html").read_text("utf-8"))
    assert data["trials"][5]["violated"] == ["drift <= 0.01"]
    assert not data["trials"][5]["feasible"]


def test_no_credentials(tmp_path: Path) -> None:
    secret = "s3://AKIAKEY:hunter2@bucket/captions.txt?session_token=tokyo"
    storage = Storage(tmp_path)
    records = write_sweep(tmp_path, trials=8, captions={"count": 5, "source": secret, "hash": "00"})
    write_trial(storage, replace(records[7], cause=f"cannot read {secret}"))
    write_sweep_text(storage, yaml.safe_dump({"name": "a", "captions": {"source": secret}}))
    page = report_page(storage)
    assert "bucket/captions.txt" in page
    assert not re.search("hunter2|AKIAKEY|tokyo", page)


def picture_of(uri: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2])))


def test_large_pictures_are_made_smaller(tmp_path: Path) -> None:
    record = write_sweep(tmp_path, trials=1)[0]
    Image.new("RGB", (1024, 512), (200, 30, 30)).save(
        tmp_path / "pictures" / f"{record.digest}.png"
    )
    found = embed_grids([PageTrial(Sweep.open(tmp_path), record)])[record.digest]
    assert (
        (found["width"], found["height"])
        == (GRID_SIDE, GRID_SIDE // 2)
        == picture_of(found["uri"]).size
    )
    assert (
        np.abs(np.asarray(picture_of(found["uri"]).convert("RGB"), dtype=int) - (200, 30, 30)).max()
        <= 3
    )


def test_the_front_has_pictures_first_and_room_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_sweep(tmp_path, trials=20)
    front = {record.digest for record in _front_records(tmp_path)}
    whole = page_data([Sweep.open(tmp_path)])["thumbnails"]
    front |= {record.digest for record in Sweep.open(tmp_path).records if record.label == "vanilla"}
    room = sum(len(whole[digest]["uri"]) for digest in front)
    monkeypatch.setattr(images, "_MAX_GRID_CHARACTERS", room)
    pictures = page_data([Sweep.open(tmp_path)])["thumbnails"]
    assert set(pictures) == front < set(whole)


def _front_records(folder: Path) -> list[TrialRecord]:
    sweep = Sweep.open(folder)
    numbers = set(sweep.front()["number"].to_pylist())
    return [record for record in sweep.records if record.number in numbers]


@pytest.mark.parametrize(
    "spoil", [lambda path: path.write_bytes(b"\x89PNG broken"), without_pixels]
)
def test_a_broken_picture_is_left_out(spoil: Callable[[Path], None], tmp_path: Path) -> None:
    first, second = write_sweep(tmp_path, trials=2)
    spoil(tmp_path / "pictures" / f"{first.digest}.png")
    notes: list[str] = []
    pictures = data_of(report_page(Storage(tmp_path), notes.append))["thumbnails"]
    assert set(pictures) == {second.digest}
    assert len(notes) == 1
    assert f"pictures/{first.digest}.png: damaged" in notes[0]


def test_it_is_written_where_the_sweep_is(tmp_path: Path) -> None:
    write_sweep(tmp_path / "anything", trials=4, shards=True)
    far = Storage("anything", filesystem=fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem()))
    assert write_report(far) == "report.html"
    assert len(data_of((tmp_path / "anything" / "report.html").read_text("utf-8"))["trials"]) == 4


def test_facts_and_what_was_searched(tmp_path: Path) -> None:
    write_sweep(tmp_path, trials=30)
    sweep = Sweep.open(tmp_path)
    known = dict(facts(sweep))
    assert known["captions"] == ["192 captions of scenes", "4b" * 8]
    assert known["weights"][0] == "target.safetensors " + "0f" * 8
    assert known["objectives"] == ["maximize speedup", "minimize fid"]
    assert known["started"] == ["2 January 2026, 03:00 UTC"]
    assert "missing" not in known
    tried = dict(searched(sweep.records))
    assert tried["tree.policy"] == ["chain, dynamic"]
    assert tried["tree.depth"] == ["2, 3, 4, 5"]
    assert "tree.width" not in tried, "it never changed"
    labelled = [replace(record, label="mine") for record in sweep.records]
    assert searched(labelled) == []


def test_groups() -> None:
    assert set(groups(PRESETS["vanilla"]).values()) == {"vanilla"}
    assert groups(PRESETS["lantern"]) == {
        "acceptance": "additive",
        "tree": "dynamic",
        "drafter": "eagle",
    }
    assert groups(PRESETS["gsd"]) == {
        "acceptance": "grouped",
        "tree": "chain",
        "drafter": "jacobi",
    }


def test_each_group_says_what_it_is() -> None:
    settings = [PRESETS[name] for name in ("vanilla", "lantern", "eagle1", "zipar", "pjd_maximal")]
    looks = group_looks([{"groups": groups(setting)} for setting in settings], [*settings, None])
    abouts = {name: look["about"] for entries in looks.values() for name, look in entries.items()}
    assert {"vanilla", "additive", "exact", "rows", "dynamic", "static", "eagle"} <= abouts.keys()
    assert all(abouts.values())
    assert "exact rule" in abouts["exact"]
    assert "25" in abouts["static"]


def command(*arguments: str) -> str:
    """What `specfrontier report ARGUMENTS` prints."""
    app = typer.Typer()
    app.command()(report)
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output.strip()


def test_the_command_prints_where_the_page_is(tmp_path: Path) -> None:
    write_sweep(tmp_path / "sweep", trials=3)
    assert command(str(tmp_path / "sweep")) == str(tmp_path / "sweep" / "report.html")
    out = tmp_path / "new" / "page.html"
    assert command(str(tmp_path / "sweep"), "--out", str(out)) == str(out)
    assert len(data_of(out.read_text("utf-8"))["trials"]) == 3


def test_the_command_opens_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def open_page(page: str) -> bool:
        opened.append(page)
        return True

    monkeypatch.setattr(webbrowser, "open", open_page)
    write_sweep(tmp_path, trials=3)
    command(str(tmp_path), "--open")
    assert opened == [(tmp_path / "report.html").as_uri()]
    monkeypatch.setattr(webbrowser, "open", lambda page: False)
    with pytest.raises(CommandError, match="no browser"):
        command(str(tmp_path), "--open")


def test_no_sweep_there(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="no sweep here") as ended:
        command(str(tmp_path))
    assert ended.value.code == 2


def test_a_broken_trial_is_named(tmp_path: Path) -> None:
    write_sweep(tmp_path, trials=3)
    (tmp_path / "trials" / "00001.json").write_text("{")
    with pytest.raises(CommandError, match=r"00001\.json"):
        command(str(tmp_path))


def test_neither_torch_nor_the_libraries_of_a_sweep_are_needed(tmp_path: Path) -> None:
    write_sweep(tmp_path, trials=5, shards=True)
    code = (
        "import sys; from orchestrator.cli.report import report; report(sys.argv[1], None, "
        "False)\nprint(sorted({'torch', 'ray', 'optuna', 'mlflow', 'matplotlib', 'transformers'} "
        "& set(sys.modules)))"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=HANG_S,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_trial_that_stopped_early_is_told_apart(tmp_path: Path) -> None:
    data = written(tmp_path, trials=12, stopped={9: 2})
    trial = data["trials"][9]
    assert (trial["state"], trial["images"], trial["feasible"]) == ("stopped", 96, False)
    assert trial["cause"].startswith("trial 2 ")
    assert trial["confidence"] is None
    assert any("1 of them stopped early" in text for text in data["summary"])


def test_neighbours_on_the_front_are_told_apart_as_pareto_does(tmp_path: Path) -> None:
    """By what their errors share, of which the page knows a part."""
    write_sweep(tmp_path, trials=16)
    sweep = Sweep.open(tmp_path)
    trials = {trial["id"]: trial for trial in page_data([sweep])["trials"]}
    members = front_of([sweep]).members
    for member, following in pairwise(members):
        entry = trials[member.name]
        assert entry["next_on_front"] == following.name
        assert entry["distinct_from_next"] == member.distinct_from_next
    assert trials[members[-1].name]["next_on_front"] is None
