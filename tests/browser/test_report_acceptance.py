"""The charts of accepted drafts in the report."""

from __future__ import annotations

from pathlib import Path

from orchestrator.report.page import write_report
from tests.browser.report_pages import Open
from tests.fakes.counted_sweeps import GROUPS, counts_of, write_counted_sweep
from workers.data.records import write_shard
from workers.data.storage import Storage
from workers.metrics.acceptance import AcceptanceCounts, acceptance_file


def test_each_trial_that_drafts_has_a_chart(open_page: Open, tmp_path: Path) -> None:
    write_counted_sweep(tmp_path, trials=6, without=[1])
    write_report(Storage(tmp_path), decode=False)
    page = open_page(tmp_path)
    figures = page.locator("#acceptance-list figure")
    numbers = figures.evaluate_all("all => all.map((figure) => Number(figure.dataset.trial))")
    assert sorted(numbers) == [0, 2, 3, 4, 5]
    for figure, number in zip(figures.all(), numbers, strict=True):
        chart = figure.locator("svg")
        positions = counts_of(number).positions()
        assert chart.locator(".histogram rect").count() == len(positions)
        assert chart.locator(".dot circle").count() == len(positions) - 1
        assert str(counts_of(number).mean_accepted()) in str(chart.get_attribute("aria-label"))
    heads = page.locator("#acceptance-list thead th").all_text_contents()
    assert heads == ["trial", "all captions", *GROUPS]


def test_groups_that_are_left_out_are_counted(open_page: Open, tmp_path: Path) -> None:
    record = write_counted_sweep(tmp_path, trials=4)[2]
    names = [f"group {place:02}" for place in range(24)]
    counts = AcceptanceCounts.of([[1, 2]] * 24, [[3]] * 24, names, range(24))
    file = acceptance_file(record.digest)
    write_shard(Storage(tmp_path), file, counts.to_table(), {"kind": "acceptance"})
    write_report(Storage(tmp_path), decode=False)
    text = open_page(tmp_path).locator("#acceptance-list").text_content()
    assert "by 8 groups of captions (18 more: compare --by group --json)" in str(text)
