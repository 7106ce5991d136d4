"""The first screen of the report: the recommended setting, the slider that moves the quality bar,
the whole chart.
"""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.front.choice import best_within, recommend
from orchestrator.front.front import Front, front_of
from orchestrator.front.questions import trial_rows
from orchestrator.report.page import page_data, render, write_report
from orchestrator.shown.status import timing_notes
from orchestrator.store.names import Form
from orchestrator.store.records import write_trial
from orchestrator.store.sweep import Sweep
from orchestrator.text import percent
from tests.browser.report_pages import DESK, PHONE, Open
from tests.fakes.command_line import specfrontier
from tests.fakes.metric_inputs import write_session
from tests.fakes.synthetic_sweeps import METRICS, write_sweep
from workers.data.storage import Storage

if TYPE_CHECKING:
    from playwright.sync_api import Page, ViewportSize


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("sweep")
    write_sweep(place, trials=24, seed=3, shards=True)
    write_report(Storage(place))
    return place


@pytest.fixture(scope="module")
def untouched(open_shared_page: Open, folder: Path) -> Page:
    """One page for the tests that only read it."""
    return open_shared_page(folder)


def move_slider(page: Page, bar: float) -> None:
    page.locator("#bar").evaluate(
        "(slider, bar) => { slider.value = bar; slider.dispatchEvent(new Event('input')); }", bar
    )


def chosen(page: Page) -> str:
    return str(page.locator("#fastest .chosen").get_attribute("data-trial"))


def best(folder: Path, limit: str) -> dict[str, Any]:
    found: dict[str, Any] = specfrontier("pareto", str(folder), "--best", limit, "--json").json
    return found


def test_the_slider_moves_the_recommendation_as_pareto_best_does(
    open_page: Open, folder: Path
) -> None:
    page, seen = open_page(folder), set()
    for bar in (0.8, 1.0, 1.1, 1.2, 1.38):
        move_slider(page, bar)
        expected = best(folder, f"fid <= {bar:.2f} * vanilla")
        assert chosen(page) == str(expected["best"]["number"])
        share = page.locator("#fastest meter").first.evaluate(
            "meter => Number(meter.getAttribute('value'))"
        )
        assert share == pytest.approx(expected["best_confidence"], abs=0.01)
        assert f"--best 'fid <= {bar:.2f} * vanilla'" in page.locator(".command").inner_text()
        seen.add(chosen(page))
    assert len(seen) > 2


def test_it_says_how_sure_the_speed_up_is(untouched: Page, folder: Path) -> None:
    page, front = untouched, front_of([Sweep.open(folder)], "speedup", "fid")
    for part in ("#fastest", "#lossless", "#knee"):
        number = page.locator(f"{part} .chosen").get_attribute("data-trial")
        trial = next(candidate for candidate in front.candidates if candidate.name == number)
        share = trial.gain_probability
        assert share is not None
        assert (
            f"faster than vanilla in {percent(share)} of draws" in page.locator(part).inner_text()
        )


def test_each_choice_is_written_to_a_file_of_its_own(open_page: Open, folder: Path) -> None:
    page = open_page(folder, permissions=["clipboard-read", "clipboard-write"])
    page.locator("#lossless").get_by_role("button", name="Copy command").click()
    pareto, generate = page.evaluate("navigator.clipboard.readText()").splitlines()
    assert "--lossless --config exact.yaml" in pareto
    assert "--config exact.yaml" in generate
    assert "--config fast.yaml" in page.locator("#fastest .command").inner_text()


def test_the_fastest_lossless_setting(open_page: Open, folder: Path, tmp_path: Path) -> None:
    page, trial = (
        open_page(folder),
        recommend(front_of([Sweep.open(folder)], "speedup", "fid")).choices.get("best_lossless"),
    )
    assert trial is not None
    said = page.locator("#basis").inner_text()
    assert all(text in said for text in trial.basis)
    assert ("Fastest lossless: " in said) == bool(trial.basis)
    assert page.locator("#lossless .chosen").get_attribute("data-trial") == trial.name
    page.locator("#filter").fill("lossless=true")
    expected = trial_rows(Sweep.open(folder), ["lossless=true"], ["number"])["number"].to_pylist()
    rows = page.locator("#table tbody tr").evaluate_all(
        "all => all.map((row) => Number(row.dataset.trial))"
    )
    assert rows == expected
    objectives = [{"metric": name, "direction": "minimize"} for name in ("drift", "fid")]
    write_sweep(tmp_path, trials=6, objectives=objectives)
    write_report(Storage(tmp_path))
    assert open_page(tmp_path).locator("#lossless").is_hidden()


def test_the_command_selects_the_recommended_setting(untouched: Page) -> None:
    page = untouched
    first = page.locator(".command .line").first.inner_text()
    words = shlex.split(first)
    assert words[0] == "specfrontier"
    assert str(specfrontier(*words[1:-2], "--json").json["best"]["number"]) == chosen(page)


def test_the_knee_is_that_of_the_sweep(untouched: Page, folder: Path) -> None:
    page, front = untouched, front_of([Sweep.open(folder)], "speedup", "fid")
    knee = recommend(front).choices.get("knee")
    assert knee is not None
    assert page.locator("#knee .chosen").get_attribute("data-trial") == knee.name
    assert (
        f"{round(100 * (knee.probability or 0))} % of draws" in page.locator("#knee").inner_text()
    )


def test_the_change_of_quality_is_paired_with_vanilla(untouched: Page, folder: Path) -> None:
    page, front = untouched, front_of([Sweep.open(folder)], "speedup", "fid")
    joint, names = front.joint_errors, [candidate.name for candidate in front.candidates]
    vanilla = front.sweeps["synthetic"].baseline
    assert vanilla is not None
    value, error, _ = joint.difference(names.index(chosen(page)), names.index(str(vanilla.number)))
    base = vanilla.metrics["fid"].value
    shown = page.locator("#fastest .headline dd").nth(1).inner_text()
    change, _, more = shown.removesuffix(" %").partition(" ± ")
    assert shown.endswith(" %")
    assert float(change) == pytest.approx(100 * value[1] / base, abs=0.1)
    assert float(more) == pytest.approx(100 * error[1] / base, abs=0.1)


def check_every_step(page: Page, front: Front) -> set[str]:
    """Compare each position of the slider with the front's best; returns the names of the trials on
    the page.
    """
    front = replace(front, form=Form.ABBREVIATED)  # as the page
    rows = page.locator("#bar").evaluate("""slider => {
          const rows = [], count = Math.round((slider.max - slider.min) / slider.step);
          for (let i = 0; i <= count; i++) {
            slider.value = Number(slider.min) + i * Number(slider.step);
            slider.dispatchEvent(new Event("input"));
            const part = (name) => document.querySelector("#fastest " + name);
            const bases = [...document.querySelectorAll("#basis p")].map((line) => line.innerText);
            const basis = bases.find((text) => text.startsWith("Fastest within")) ?? "";
            rows.push([part("pre")?.innerText, part(".chosen")?.dataset.trial, Number(part("meter")?.value), basis]);
          }
          return rows;
        }""")
    assert 1 < len(rows) < 155
    for command, name, share, basis in rows:
        limit = command.split("'")[1]
        best = best_within(front, [limit])
        assert best is not None
        assert (limit, name) == (limit, best.name)
        assert share == pytest.approx(best.limit_probability([limit]), abs=6e-4), limit
        said = f"Fastest within the bar: {'; '.join(best.basis)}."
        assert basis == (said if best.basis else "")
    assert len({command for command, *_ in rows}) == len(rows)
    return {name for _, name, *_ in rows}


@pytest.mark.parametrize("metric", ["drift", "clip_score"])
def test_every_bar_on_other_metrics(open_page: Open, tmp_path: Path, metric: str) -> None:
    direction = METRICS[metric]["direction"]
    objectives = [
        {"metric": "latency", "direction": "minimize"},
        {"metric": metric, "direction": direction},
    ]
    vanilla = write_sweep(tmp_path, trials=24, seed=3, objectives=objectives)[0]
    if metric == "drift":  # from itself: no bar is a multiple of it
        drift = {"drift": replace(vanilla.metrics["drift"], value=0.0)}
        write_trial(Storage(tmp_path), replace(vanilla, metrics={**vanilla.metrics, **drift}))
    write_report(Storage(tmp_path))
    page, front = open_page(tmp_path), front_of([Sweep.open(tmp_path)], "latency", metric)
    assert len(check_every_step(page, front)) > 2
    assert ("* vanilla" in page.locator(".command .line").first.inner_text()) is (
        metric == "clip_score"
    )
    assert page.locator("#fastest h3").inner_text() == "Fastest within it"
    if metric == "clip_score":  # vanilla / vanilla is 1 in every draw
        candidate = next(c for c in front.candidates if c.record.number == 0)
        assert candidate.limit_probability([f"{metric} >= 1 * vanilla"]) == 1


def test_a_metric_that_is_not_of_quality_has_no_bar(open_page: Open, tmp_path: Path) -> None:
    objectives = [
        {"metric": name, "direction": METRICS[name]["direction"]}
        for name in ("fid", "step_compression")
    ]
    write_sweep(tmp_path, trials=24, seed=1, objectives=objectives)
    write_report(Storage(tmp_path))
    page, front = open_page(tmp_path), front_of([Sweep.open(tmp_path)])
    for part in ("#bar", "#fastest", ".bar-line", ".ring.fast"):
        assert page.locator(part).count() == 0
    knee = recommend(front).choices.get("knee")
    assert knee is not None
    assert page.locator("#knee .chosen").get_attribute("data-trial") == knee.name
    assert page.locator("#card").get_attribute("data-trial") == knee.name
    assert "step compression" in page.locator("#answer .quiet").first.inner_text()


def test_a_lossless_setting_has_vanillas_fid(open_page: Open, tmp_path: Path) -> None:
    """However lucky its own images were."""
    records = write_sweep(tmp_path, trials=24, seed=3)
    fastest = recommend(front_of([Sweep.open(tmp_path)])).choices["best_lossless"]
    lossless = records[fastest.number]
    lucky = replace(lossless.metrics["fid"], value=0.9 * lossless.metrics["fid"].value)
    write_trial(Storage(tmp_path), replace(lossless, metrics={**lossless.metrics, "fid": lucky}))
    write_report(Storage(tmp_path))
    shown = open_page(tmp_path).locator("#lossless").inner_text()
    vanilla = Sweep.open(tmp_path).records[0].metrics["fid"]
    assert "fid, vanilla’s (lossless)" in shown
    assert str(vanilla) in shown
    assert "change" not in shown


@pytest.mark.parametrize("seeds", [(3, 23), (23, 3)])
def test_every_bar_of_sweeps_with_their_own_vanilla(
    open_page: Open, tmp_path: Path, seeds: tuple[int, int]
) -> None:
    for name, seed in zip("ab", seeds, strict=True):
        target = {"target.safetensors": f"{seed}" * 8}  # each has its own lossless quality
        facts: dict[str, Any] = {"models": target, "experiment": f"{seed}" * 10}
        write_sweep(tmp_path / name, trials=14, seed=seed, name=name, **facts)
    sweeps = [Sweep.open(tmp_path / name) for name in "ab"]
    (tmp_path / "report.html").write_text(render(page_data(sweeps)), "utf-8")
    front = front_of(sweeps, "speedup", "fid")
    names = check_every_step(open_page(tmp_path), front)
    assert names - {member.name for member in front.members}, (
        "off the front, but the fastest within 1.1 * its vanilla"
    )


@pytest.mark.parametrize("viewport", [DESK, PHONE], ids=["desk", "phone"])
def test_the_first_screen_has_the_answer_and_the_whole_chart(
    open_page: Open, folder: Path, viewport: ViewportSize
) -> None:
    page = open_page(folder, viewport=viewport)
    headings = ("#answer h2", "#fastest h3", "#lossless h3", "#knee h3")
    values = (
        "#bar",
        "#fastest .headline",
        "#fastest .sure",
        "#lossless .headline",
        "#knee .headline",
    )
    for part in (
        *headings,
        *values,
        "#fastest .copy",
        "#chart > svg",
        *([".command"] if viewport is DESK else []),
    ):
        frame = page.locator(part).first.bounding_box()
        assert frame is not None
        assert frame["y"] >= 0
        assert frame["y"] + frame["height"] <= viewport["height"], part
        assert frame["x"] >= 0
        assert frame["x"] + frame["width"] <= viewport["width"], part
    assert page.evaluate("document.documentElement.scrollWidth") == viewport["width"]


@pytest.mark.parametrize("viewport", [DESK, PHONE], ids=["desk", "phone"])
def test_what_is_to_know_about_speeds_is_noted_with_the_recommendation(
    open_page: Open, tmp_path: Path, viewport: ViewportSize, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the note has the path of the sweep, and a long one wraps
    folder = Path("sweep")
    write_sweep(folder, trials=24, seed=3)
    configs = [record.config for record in Sweep.open(folder).records if record.config]
    write_session(Storage(folder), dict.fromkeys(configs, (1.0, 1.1)))
    (warning,) = timing_notes(Sweep.open(folder))
    write_report(Storage(folder))
    page = open_page(folder.resolve(), viewport=viewport)
    note = page.locator("#answer .warning")
    assert warning in note.inner_text()
    for part in (note, page.locator("#fastest .headline"), page.locator("#knee .headline")):
        frame = part.bounding_box()
        assert frame is not None
        assert frame["y"] + frame["height"] <= viewport["height"]


def test_the_whole_command_is_legible(untouched: Page) -> None:
    page = untouched
    assert page.locator(".command").evaluate("box => box.scrollHeight <= box.clientHeight")
    assert page.locator("button, a").evaluate_all("""all => {
        const box = document.querySelector(".command").getBoundingClientRect();
        return all.map((one) => one.getBoundingClientRect()).every((one) =>
          one.bottom <= box.top || one.top >= box.bottom || one.right <= box.left || one.left >= box.right);
    }""")


def test_only_front_members_are_bold(untouched: Page, folder: Path) -> None:
    page = untouched
    front = front_of([Sweep.open(folder)], "speedup", "fid").members
    expected = {member.record.label or f"trial {member.name}" for member in front}
    bold = page.locator(".labels text").evaluate_all(
        "all => all.filter((text) => Number(getComputedStyle(text).fontWeight) >= 600).map((text) "
        "=> text.textContent)"
    )
    assert set(bold) <= expected
    assert len(bold) == min(len(expected), 12), "as many names as front.png has"
    assert any(name.startswith("trial ") for name in bold)


@pytest.mark.parametrize("metric", ["fid", "drift"])
def test_a_sweep_of_vanilla_alone(open_page: Open, tmp_path: Path, metric: str) -> None:
    objectives = [
        {"metric": "speedup", "direction": "maximize"},
        {"metric": metric, "direction": "minimize"},
    ]
    write_sweep(tmp_path, trials=1, objectives=objectives)
    write_report(Storage(tmp_path))
    page = open_page(tmp_path)
    assert chosen(page) == "0"
    assert len(page.locator("#bar-text").inner_text()) < 25
    assert "no knee" in page.locator("#knee").inner_text()
    assert "than vanilla in" not in page.locator("#answer").inner_text()
