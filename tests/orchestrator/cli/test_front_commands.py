"""`pareto`, `compare` and `status` on made-up sweeps: what they print, write, refuse, and what they
do not import.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner

from orchestrator.cli.compare import compare
from orchestrator.cli.pareto import pareto
from orchestrator.cli.status import status
from orchestrator.cli.text import for_output, shown_table
from orchestrator.errors import CommandError
from orchestrator.front.choice import recommend
from orchestrator.front.compare import hypervolume
from orchestrator.front.front import front_of
from orchestrator.front.joint import directions
from orchestrator.store.events import Launch, TrialStarted, append_event
from orchestrator.store.locks import driver_lock
from orchestrator.store.records import write_trial
from orchestrator.text import clean
from search_spaces.trial import DecodingConfig
from specfrontier import Sweep
from tests.fakes.synthetic_sweeps import identity, write_sweep
from workers.data.storage import Storage
from workers.metrics.estimate import measured


@dataclass
class Ran:
    out: str
    code: int
    error: str


def run(command: Callable[..., None], *arguments: str | Path) -> Ran:
    """The command as the command line runs it."""
    app = typer.Typer()
    app.command()(command)
    ran = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if isinstance(ran.exception, CommandError):
        return Ran(ran.stdout, ran.exception.code, str(ran.exception))
    if ran.exception is not None and not isinstance(ran.exception, SystemExit):
        raise ran.exception
    return Ran(ran.stdout, ran.exit_code, ran.stderr)


def data(command: Callable[..., None], *arguments: str | Path) -> Any:
    ran = run(command, *arguments, "--json")
    assert ran.code == 0, ran.error
    return json.loads(ran.out)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweeps") / "one"
    write_sweep(folder, trials=24, name="one", repeated={10: 6}, budget=30)
    return folder


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweeps") / "two"
    write_sweep(folder, trials=15, seed=5, name="two")
    return folder


def test_pareto_lists_the_front(one: Path) -> None:
    ran = run(pareto, one)
    front = Sweep.open(one).front()
    lines = ran.out.splitlines()
    assert lines[0] == "one: speedup (higher is better) against fid (lower is better)"
    assert (
        lines[1]
        == f"{front.num_rows} of 22 trials are on the front (left out: 1 failed, 1 repeated)"
    )
    head = lines.index(next(line for line in lines if line.startswith("trial ")))
    rows = [line.split()[0] for line in lines[head + 1 : head + 1 + front.num_rows]]
    assert rows == [str(number) for number in front["number"].to_pylist()]
    assert "± " in lines[head + 1]
    assert all(line == line.rstrip() for line in lines)
    assert any(line.startswith("vanilla: trial 0 (speedup ") for line in lines)


@pytest.mark.parametrize("columns", [80, 200])
def test_the_front_fits_the_terminal(
    one: Path, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has no room as a column is in a line below the table."""
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = run(pareto, one).out.splitlines()
    (head,) = (line for line in lines if line.startswith("trial "))
    table = lines[lines.index(head) : lines.index("", lines.index(head))]
    assert max(map(len, table)) <= columns
    is_wide = columns > 80
    assert ("label" in head, "within error of" in head) == (is_wide, is_wide)
    below = {line.partition(":")[0] for line in table if ":" in line}
    assert below == (set() if is_wide else {"labels", "within error of each other"})
    members = for_output(front_of([Sweep.open(one)]), long=False).members
    assert all(
        any(row.startswith(f"{m.name} ") and f" {m.setting} " in row for row in table)
        for m in members
    )


def test_settings_in_words_on_request(one: Path) -> None:
    short, long = run(pareto, one).out, run(pareto, one, "--long").out
    members = front_of([Sweep.open(one)]).members
    assert all(member.description in long for member in members)
    cut = [member.setting for member in members if member.setting != member.description]
    assert cut
    assert not any(name in long for name in cut), "below the table either"
    assert not any(
        member.description in short for member in members if member.description != member.setting
    )


def test_a_note_names_the_trials_that_lack_an_objective(tmp_path: Path) -> None:
    records = write_sweep(tmp_path, trials=8)
    for number in (3, 5):
        lacking = {name: entry for name, entry in records[number].metrics.items() if name != "fid"}
        write_trial(Storage(str(tmp_path)), replace(records[number], metrics=lacking))
    assert "fid was not measured in 2 of " in (shown := run(pareto, tmp_path).out)
    assert " trials (3, 5)" in shown
    assert "not measured" not in run(pareto, tmp_path, "--y", "drift").out


def test_groups_by_the_whole_rule(one: Path) -> None:
    """A budget without neighbours is no exact rule, though both have the neighbourhood `none`."""
    by_rule = data(compare, one, "--by", "acceptance")["sizes"]
    by_neighbours = data(compare, one, "--by", "acceptance.neighbourhood")["sizes"]
    assert {"vanilla", "exact", "additive", "multiplicative", "exponential"} <= by_rule.keys()
    without = {"vanilla", "exact", "no neighbourhood"}
    assert by_neighbours.keys() == without | {"additive", "multiplicative"}
    configs = [candidate.config for candidate in front_of([Sweep.open(one)]).candidates]
    for part, kinds in (
        ("tree", [c.policy.kind for c in configs]),
        ("drafter", [c.drafter.kind for c in configs]),
    ):
        sizes = data(compare, one, "--by", part)["sizes"]
        assert sizes.keys() == {"vanilla" if kind == "none" else kind for kind in kinds}


def test_pareto_as_data(one: Path) -> None:
    found = data(
        pareto, one, "--y", "drift", "--where", "acceptance.neighbourhood=additive", "--all"
    )
    table = Sweep.open(one).front(
        "speedup", "drift", where=["acceptance.neighbourhood=additive"], everything=True
    )
    assert [row["number"] for row in found["rows"]] == table["number"].to_pylist()
    assert [row["on_front"] for row in found["rows"]] == table["on_front"].to_pylist()
    assert found["objectives"] == [
        {"metric": "speedup", "direction": "maximize"},
        {"metric": "drift", "direction": "minimize"},
    ]
    assert {"value", "error"} == set(found["rows"][0]["metrics"]["drift"])


def test_best_knee_and_hypervolume(one: Path, tmp_path: Path) -> None:
    file = tmp_path / "best.yaml"
    limits = ("--best", "fid<=vanilla+1", "--best", "drift<=1.2")
    assert run(pareto, one, *limits, "--knee", "--config", file).code == 2
    found = data(pareto, one, *limits, "--hypervolume", "--config", file)
    sweep = Sweep.open(one)
    within = sweep.front(subject_to=["fid<=vanilla+1", "drift<=1.2"], everything=True)
    assert found["best"]["metrics"]["speedup"]["value"] == max(within["speedup"].to_pylist())
    assert found["hypervolume"] == pytest.approx(
        front_of([sweep]).hypervolume(found["reference_point"])[0]
    )
    assert 0 < found["hypervolume_error"] < 0.2 * found["hypervolume"]
    assert 0 < found["knee_confidence"] <= 1
    assert 0.5 < found["best_confidence"] <= 1, "two limits, met by measured values"
    assert found["knee"]["number"] in sweep.front()["number"].to_pylist()
    chosen = DecodingConfig.from_mapping(yaml.safe_load(file.read_text()))
    assert chosen.digest() == found["best"]["digest"]
    words = run(
        pareto,
        one,
        "--best",
        "fid<=vanilla+1",
        "--knee",
        "--hypervolume",
        "--reference-point",
        "0,20",
    ).out
    assert "fastest within fid<=vanilla+1 (holds in " in words
    front = front_of([sweep])
    for mark in ("best", "knee"):
        trial = next(c for c in front.candidates if c.record.number == found[mark]["number"])
        assert found[f"{mark}_gain_confidence"] == trial.gain_probability
    assert words.count(", faster than vanilla in ") == 3, "best, lossless and knee"
    by_fid = data(pareto, one, "--x", "fid", "--best", "speedup>=0.1")
    assert (
        ", better fid than vanilla in "
        in run(pareto, one, "--x", "fid", "--best", "speedup>=0.1").out
    )
    assert 0 < by_fid["best_gain_confidence"] <= 1
    only_vanilla = ("--where", "label=vanilla", "--best", "fid<=vanilla")
    assert data(pareto, one, *only_vanilla)["best_confidence"] is None, (
        "vanilla is within its own limit for certain"
    )
    assert data(pareto, one, *only_vanilla)["best_gain_confidence"] is None
    assert "than vanilla" not in run(pareto, one, *only_vanilla).out
    assert "knee (holds in " in words
    assert ", from the reference point (0, 20)" in words


def test_the_fastest_lossless_setting(one: Path, tmp_path: Path) -> None:
    file, trial = (
        tmp_path / "lossless.yaml",
        recommend(front_of([Sweep.open(one)])).choices.get("best_lossless"),
    )
    assert trial is not None
    lines = run(pareto, one).out.splitlines()
    name, speed, quality = lines[lines.index("fastest lossless") + 1 :][:3]
    assert name == f"  trial {trial.name}, {trial.title}"
    assert ", faster than vanilla in " in speed
    assert quality.endswith(", vanilla's (lossless)")
    found = data(pareto, one, "--lossless", "--config", file)
    assert found["best_lossless"]["number"] == trial.record.number
    assert 0 < found["best_lossless_gain_confidence"] <= 1
    assert DecodingConfig.from_mapping(yaml.safe_load(file.read_text())) == trial.config
    both = data(pareto, one, "--best", "fid <= 1000", "--lossless")["best"]
    assert (
        both["number"]
        == trial.record.number
        != data(pareto, one, "--best", "fid <= 1000")["best"]["number"]
    )
    assert "fastest lossless" not in run(pareto, one, "--where", "lossless=false").out
    assert data(pareto, one, "--where", "lossless=false")["best_lossless"] is None


def test_unknown_errors_are_null_in_json(tmp_path: Path) -> None:
    for record in write_sweep(tmp_path, trials=8):
        without = {
            name: replace(entry, error=math.inf, replicates=())
            for name, entry in record.metrics.items()
        }
        write_trial(Storage(str(tmp_path)), replace(record, metrics=without))
    for command in (pareto, status):
        found = data(command, tmp_path)
        assert found["best_change"]["fid"]["error"] is None
        assert "NaN" not in run(command, tmp_path, "--json").out


def test_a_choice_of_vanilla_is_not_described_as_a_gain(one: Path) -> None:
    lines = run(pareto, one, "--where", "label=vanilla").out.splitlines()
    assert "fastest within fid <= 1.2 * vanilla: trial 0, vanilla itself" in lines
    assert not any("against vanilla" in line for line in lines)


def test_a_front_is_not_filtered_by_itself(one: Path) -> None:
    """Shares of draws among the members alone would be too large."""
    ran = run(pareto, one, "--where", "front")
    assert ran.code == 2
    assert "front" in ran.error


def test_several_sweeps_make_one_front(one: Path, two: Path) -> None:
    found = data(pareto, one, two)
    opened = [Sweep.open(folder) for folder in (one, two)]
    together = front_of(opened).sweeps  # settings that both have, have one value
    values = {
        (name, record.number): (record.metrics["speedup"].value, -record.metrics["fid"].value)
        for name, sweep in together.items()
        for record in sweep.records
        if record.feasible and record.duplicate_of is None
    }
    expected = {
        key
        for key, (x, y) in values.items()
        if not any(a >= x and b >= y and (a, b) != (x, y) for a, b in values.values())
    }
    assert {(row["sweep"], row["number"]) for row in found["rows"]} == expected
    assert "one#" in run(pareto, one, two).out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--x", "sped"], 2, "'sped': unknown metric; did you mean 'speedup'?"),
        (
            ["--where", "tree.dept=2"],
            2,
            "filter 'tree.dept=2': tree.dept: unknown column; did you mean",
        ),
        (["--subject-to", "fid<vanilla"], 2, "limit 'fid<vanilla'"),
        (["--best", "fdi<=3"], 2, "unknown metric; did you mean 'fid'?"),
        (["--best", "fid < 5"], 2, "write 'fid <= 5'"),
        (["--subject-to", "fid > vanilla + 1"], 2, "write 'fid >= vanilla + 1'"),
        (["--best", "fid<=-1"], 1, "none of 22 trials is within fid<=-1"),
        (["--reference-point", "1"], 2, "--reference-point 1: give 2 numbers"),
        (["--config", "a.yaml"], 2, "--best LIMIT, --lossless or --knee"),
        (["--lossless", "--where", "lossless=false"], 1, "is faster than vanilla"),
        (["--lossless", "--x", "fid"], 2, "--x speedup"),
    ],
)
def test_mistakes(one: Path, arguments: list[str], code: int, words: str) -> None:
    ran = run(pareto, one, *arguments)
    assert (ran.code, ran.out) == (code, "")
    assert words in ran.error
    assert "\n" not in ran.error


def test_no_sweep_is_wrong_usage_and_a_broken_one_a_failure(one: Path, tmp_path: Path) -> None:
    assert run(pareto, tmp_path).code == 2
    assert run(status, "no-such-sweep").code == 2
    assert run(pareto, one, one).error == "a sweep is given twice; name each once"
    write_sweep(tmp_path / "bad", trials=3)
    (tmp_path / "bad" / "trials" / "00001.json").write_text("{")
    ran = run(pareto, tmp_path / "bad")
    assert ran.code == 1
    assert "trials/00001.json" in ran.error


def test_a_filter_that_nothing_passes_is_an_empty_answer(one: Path, tmp_path: Path) -> None:
    nothing = (one, "--where", "speedup>=1000", "--knee")
    ran = run(pareto, *nothing, "--hypervolume")
    assert ran.code == 0
    file = tmp_path / "knee.yaml"
    assert run(pareto, *nothing, "--config", file).code == 1
    assert not file.exists()
    assert "0 of 0 trials are on the front (left out: 24 by --where)" in ran.out
    found = data(
        pareto,
        one,
        "--where",
        "speedup>=1000",
        "--where",
        "tree.policy=chian",
        "--where",
        "number<5",
    )
    assert found["rows"] == []
    speeds, trees = found["warnings"]
    largest = max(
        record.metrics["speedup"].value for record in Sweep.open(one).records if record.metrics
    )
    assert f"to {largest:.4g}" in speeds, "the range of a column with many values"
    assert all(word in trees for word in ("tree.policy=chian", "chain", "dynamic", "none"))
    assert trees in run(pareto, one, "--where", "tree.policy=chian").out


def test_a_limit_on_the_first_objective_alone_is_noted(one: Path) -> None:
    assert data(pareto, one, "--x", "latency", "--y", "fid")["warnings"] == []
    assert data(pareto, one, "--y", "drift", "--best", "drift <= 9")["warnings"] == []
    (hint,) = data(pareto, one, "--y", "drift", "--best", "speedup >= 1")["warnings"]
    assert "--x drift" in hint
    assert (
        data(pareto, one, "--y", "drift", "--best", "speedup >= 1", "--best", "drift <= 9")[
            "warnings"
        ]
        == []
    )


def test_trials_are_left_out_for_what_they_are(one: Path) -> None:
    """Those that --where leaves out have not failed: each trial is counted once, under the first
    reason that holds.
    """
    rows = Sweep.open(one).records
    additive = [
        r for r in rows if r.config and r.config.acceptance.neighbourhood.kind == "additive"
    ]
    sound = [r for r in additive if r.state == "complete" and r.duplicate_of is None and r.feasible]
    limit = sorted(r.metrics["drift"].value for r in sound)[1]
    within = [r for r in sound if r.metrics["drift"].value <= limit]
    where = ("--where", "acceptance.neighbourhood=additive", "--subject-to", f"drift<={limit}")
    found = data(pareto, one, *where)
    assert found["measured"] == len(within)
    assert found["left_out"]["by --where"] == len(rows) - len(additive) > 0
    assert found["left_out"]["outside --subject-to"] == len(sound) - len(within) > 0
    assert sum(found["left_out"].values()) == len(rows) - len(within)
    assert f"(left out: {len(rows) - len(additive)} by --where, " in run(pareto, one, *where).out


def test_one_trial_is(one: Path) -> None:
    fastest = max(Sweep.open(one).front(everything=True)["speedup"].to_pylist())
    words = run(pareto, one, "--where", f"speedup>={fastest}").out
    assert "1 of 1 trial is on the front (left out: 23 by --where)" in words


def test_compare_sweeps(one: Path, two: Path) -> None:
    found = data(compare, one, two)
    corner = found["reference"]
    joint = front_of([Sweep.open(folder) for folder in (one, two)])
    toward = directions(joint.metrics)
    values = joint.joint_errors.values
    for name in joint.sweeps:
        own = [place for place, trial in enumerate(joint.candidates) if trial.origin == name]
        volume = hypervolume(values[own], corner, toward)
        assert found["hypervolumes"][name] == pytest.approx(volume)
        assert 0 < found["hypervolume_errors"][name] < volume
    (pair,) = found["pairs"]
    assert pair["difference"][0] == pytest.approx(
        -(found["hypervolumes"]["two"] - found["hypervolumes"]["one"])
    )
    assert found["warnings"] == []
    words = run(compare, one, two).out
    assert "from the reference point speedup " in words
    assert "covers: the share of the second front" in words


def test_sweeps_with_other_objectives_are_compared_by_what_both_measured(
    one: Path, tmp_path: Path
) -> None:
    def other(name: str, *metrics: str) -> Path:
        known = identity(name).to_mapping()["metrics"]
        measures = {key: entry for key, entry in known.items() if key in metrics}
        objectives = [
            {"metric": key, "direction": measures[key]["direction"]} for key in metrics[:2]
        ]
        write_sweep(tmp_path / name, trials=12, name=name, metrics=measures, objectives=objectives)
        return tmp_path / name

    blind = other("blind", "drift", "speedup", "latency")
    for sweeps, axes in (
        ((one, blind), ["speedup", "drift"]),
        ((blind, one), ["drift", "speedup"]),
    ):
        found = data(compare, *sweeps)
        assert [axis["metric"] for axis in found["objectives"]] == axes
        assert [text for text in found["warnings"] if "fid" in text] == [
            "fid is not compared: only one measured it"
        ]
    assert not [
        text for text in data(compare, one, blind, "--y", "latency")["warnings"] if "fid" in text
    ]
    ran = run(compare, one, other("timed", "speedup", "latency"))
    assert ran.code == 0, "the objectives of either will do"
    ran = run(compare, one, other("fast", "speedup"))
    assert ran.code == 2
    assert "--x and --y: speedup" in ran.error


def test_compare_methods_inside_a_sweep(one: Path, two: Path) -> None:
    found = data(
        compare,
        one,
        "--by",
        "acceptance.neighbourhood",
        "--y",
        "drift",
        "--where",
        "drafter.kind=eagle",
    )
    kinds = {"exact", "no neighbourhood", "additive", "multiplicative"}
    assert set(found["hypervolumes"]) == kinds
    assert len(found["pairs"]) == 6
    both = data(compare, one, two, "--by", "tree.policy", "--where", "tree.policy in chain,dynamic")
    assert set(both["hypervolumes"]) == {"one chain", "one dynamic", "two chain", "two dynamic"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give at least two sweeps"),
        (["--by", "tree.polcy"], "tree.polcy: unknown column; did you mean 'tree.policy'?"),
        (
            ["--by", "tree.policy", "--where", "tree.policy=chain"],
            "needs two groups, found only chain",
        ),
        (["--by", "tree.policy", "--where", "speedup>=1000"], "found no measured trial"),
    ],
)
def test_compare_refuses_what_is_no_comparison(one: Path, arguments: list[str], words: str) -> None:
    ran = run(compare, one, *arguments)
    assert ran.code == 2
    assert words in ran.error


def test_incomparable_metrics_are_refused_and_speeds_are_not(one: Path, tmp_path: Path) -> None:
    write_sweep(
        tmp_path,
        trials=12,
        name="other",
        extractors={"features": "inception 99"},
        target="llamagen",
    )
    for command in (compare, pareto):
        ran = run(command, one, tmp_path)
        assert ran.code == 2
        assert "fid cannot be compared" in ran.error
        assert "choose two of speedup, " in ran.error
        assert "scenes-features 2d2d2d2d in one against inception 99 in other" in ran.error
    speeds = run(compare, one, tmp_path, "--x", "step_compression", "--y", "latency")
    assert speeds.code == 0
    assert "Note: the sweeps' targets differ." in speeds.error


KINDS = ("best", "best_lossless", "knee")


def test_status_of_a_finished_sweep(one: Path) -> None:
    ran = run(status, one)
    assert "trials    24 of 30 finished, 1 of them failed" in ran.out
    assert f"images    {22 * 192:,}" in ran.out
    assert "failed    trial 7: OutOfMemoryError" in ran.out
    found, chosen = data(status, one), data(pareto, one)
    assert "fastest within fid <= 1.2 * vanilla" in ran.out
    assert {kind: found[kind] for kind in KINDS} == {kind: chosen[kind] for kind in KINDS}
    assert (found["finished"], found["planned"], found["running"]) == (24, 30, [])
    assert found["idle_s"] > 0
    assert found["events"][-1] == "03:00:24 trial 23 complete"
    assert [row["number"] for row in found["front"]] == Sweep.open(one).front()[
        "number"
    ].to_pylist()


def test_status_while_it_runs(tmp_path: Path) -> None:
    write_sweep(tmp_path, trials=4, budget=10)
    path = tmp_path / "events.jsonl"
    for number in (4, 5):
        started = TrialStarted(number, "", "", 8, 1, 1, {}, at="2026-01-02T03:01:00+00:00")
        append_event(path, started)
    with path.open("a", encoding="utf-8") as file:
        file.write('{"event": "to')  # being written, or the writer was killed
    assert data(status, tmp_path)["running"] == [4, 5]
    assert "4 of 10 finished; started, not finished: 4, 5" in run(status, tmp_path).out
    with driver_lock(Storage(tmp_path)):
        assert "4 of 10 finished; running: 4, 5" in run(status, tmp_path).out
        assert data(status, tmp_path)["launch"]["state"] == "running"
    append_event(path, Launch(at="2026-01-02T03:02:00+00:00"))
    assert data(status, tmp_path)["running"] == []


def test_status_before_the_first_trial(tmp_path: Path) -> None:
    write_sweep(tmp_path, trials=0, budget=5)
    (tmp_path / "events.jsonl").unlink()
    ran = run(status, tmp_path)
    assert ran.code == 0
    assert "0 of 5 finished" in ran.out
    assert data(status, tmp_path)["idle_s"] is None


def test_names_cannot_steer_the_terminal(tmp_path: Path) -> None:
    records = write_sweep(tmp_path, trials=3)
    write_trial(Storage(tmp_path), replace(records[1], label="\x1b[2Jbold"))
    out = run(pareto, tmp_path, "--all").out
    assert "bold" in out
    assert "\x1b" not in out
    assert clean("a\x1b[2J\nb") == "a�[2J�b"


@pytest.mark.parametrize("command", [pareto, status, compare])
def test_names_of_stores_cannot_steer_the_terminal(
    tmp_path: Path, command: Callable[..., None]
) -> None:
    stores = [tmp_path / f"{name}\x1b[2J\x9b2J" for name in ("first", "second")]
    for seed, store in enumerate(stores):
        records = write_sweep(store, trials=6, seed=seed, name=store.name.partition("\x1b")[0])
        write_trial(Storage(store), replace(records[1], label="\x1b[2Jbold\nx"))
    ran = run(command, *(stores if command is not status else stores[:1]))
    assert ran.code == 0, ran.error
    assert "first" in ran.out
    assert command is not status or "first�[2J�2J" in ran.out
    assert command is not pareto or "�[2Jbold�x" in ran.out
    assert not {"\x1b", "\x9b"} & set(ran.out + ran.error)


@pytest.mark.parametrize(
    ("value", "error", "shown"),
    [
        (2.1345, 0.0412, "2.135 ± 0.041"),
        (231.4, 12.0, "231 ± 12"),
        (0.0004567, 0.00001, "0.000457 ± 0.000010"),
        (2.1345678, None, "2.135"),
        (1.0, 0.0, "1"),
        (1.4911111111, 2.2e-16, "1.491"),
        (0.0, 4.4e-16, "0"),
        (-2.3e9, 1e-4, "-2.3e+09"),
        (2.5e-7, 1e-8, "0.000000250 ± 0.000000010"),
        (None, 0.1, "-"),
        (float("nan"), 0.1, "-"),
    ],
)
def test_numbers_show_what_is_known(value: float | None, error: float | None, shown: str) -> None:
    assert measured(value, error) == shown


def test_tables_align() -> None:
    assert (
        shown_table(["a", "bb"], [["long", "1"], ["x", "22"]], right=[1])
        == "a     bb\nlong   1\nx     22"
    )


def test_no_heavy_library_is_imported(tmp_path: Path) -> None:
    """One process for all commands: an import that one of them does stays visible for the rest."""
    lines = [
        "pareto(a, plot=a[0] + '/f.png', knee=True)",
        "compare(a, by='tree.policy')",
        "compare([*a, 'papers/lantern-table2'], published=True)",
        "status(a[0])",
    ]
    code = (
        "import sys\nfrom orchestrator.cli.pareto import pareto\nfrom orchestrator.cli.compare "
        "import compare\nfrom orchestrator.cli.status import status\nearly = [m for m in "
        "('numpy', 'pyarrow', 'matplotlib', 'rich.table') if m in sys.modules]\na = "
        "sys.argv[1:]\n"
    )
    for line in lines:
        code += (
            f"{line}\nlate = [m for m in ('torch', 'ray', 'optuna', 'mlflow', 'transformers') if m "
            "in sys.modules]\nprint('imported:', early, late)\n"
        )
    folder = tmp_path / "copy"
    write_sweep(folder, trials=9)
    ran = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True
    )
    said = [line for line in ran.stdout.splitlines() if line.startswith("imported:")]
    assert said == ["imported: [] []"] * len(lines)


def test_status_and_pareto_count_trials_that_stopped_early(tmp_path: Path) -> None:
    write_sweep(tmp_path, trials=12, failed=(7,), stopped={9: 2})
    shown = run(status, tmp_path).out
    assert "12 of 12 finished, 1 of them failed, 1 of them stopped" in shown
    assert "stopped   trial 9: trial 2 is better in both" in shown
    assert data(status, tmp_path)["stopped"] == [
        {"number": 9, "cause": "trial 2 is better in both"}
    ]
    assert {"failed": 1, "stopped early": 1}.items() <= data(pareto, tmp_path)["left_out"].items()


def test_pareto_lists_stopped_trials_with_the_rival_and_the_reason(tmp_path: Path) -> None:
    for name in ("a", "b"):
        records = write_sweep(tmp_path / name, trials=12, name=name, stopped={9: 2, 10: 3})
    assert "stopped" not in data(pareto, tmp_path / "a")
    found = data(pareto, tmp_path / "a", "--stopped")["stopped"]
    assert [(trial["number"], trial["rival"], trial["cause"]) for trial in found] == [
        (9, 2, "trial 2 is better in both"), (10, 3, "trial 3 is better in both"),
    ]  # fmt: skip
    assert [trial["images"] for trial in found] == [records[9].images, records[10].images]
    lines = run(pareto, tmp_path / "a", tmp_path / "b", "--stopped").out.splitlines()
    head = lines.index(next(line for line in lines if line.startswith("stopped")))
    assert [line.split()[0] for line in lines[head + 1 : head + 5]] == [
        "a#9",
        "a#10",
        "b#9",
        "b#10",
    ]
    assert "trial 2 is better in both" in lines[head + 1]
    policies = {
        record.number: record.config.policy.kind for record in records if record.config is not None
    }
    rows = data(pareto, tmp_path / "a", "--stopped", "--where", f"tree.policy={policies[9]}")[
        "stopped"
    ]
    assert [trial["number"] for trial in rows] == [
        number for number in (9, 10) if policies[number] == policies[9]
    ]
    ran = run(pareto, tmp_path / "a", "--stopped", "--where", "speedup>=1000")
    assert "racing stopped no trial" in ran.out


def test_the_tables_and_plots_of_a_paper(one: Path, tmp_path: Path) -> None:
    table, plot = tmp_path / "front.tex", tmp_path / "front.svg"
    ran = run(
        pareto,
        one,
        "--table",
        table,
        "--column",
        "clip_score",
        "--plot",
        plot,
        "--plot-size",
        "3.3x2.4",
    )
    assert ran.code == 0, ran.error
    assert r"clip\_score $\uparrow$" in table.read_text()
    assert 'width="237.6pt" height="172.8pt"' in plot.read_text()
    for wrong in (
        ["--column", "clip_score"],
        ["--column", "clip_score", "--table", tmp_path / "a.csv"],
        ["--table", tmp_path / "a.tex", "--column", "nonsense"],
        ["--plot-size", "3x3"],
        ["--plot", tmp_path / "a.svg", "--plot-size", "3"],
        ["--plot", tmp_path / "a.svg", "--plot-size", "0x1"],
    ):
        refused = run(pareto, one, *wrong)
        assert refused.code == 2, wrong
        assert refused.error
    assert {path.name for path in tmp_path.iterdir()} == {"front.tex", "front.svg"}
