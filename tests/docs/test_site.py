"""The documentation as a site, and its links."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urldefrag

import pytest
import yaml
from PIL import Image

import specfrontier
from search_spaces.sweep import KEYS, SWEEP_SECTIONS, ready_spaces
from tests.docs.pages import PAGES, ROOT, blocks, prose
from tests.fakes.command_line import specfrontier as command
from workers.metrics.metric import METRICS

if TYPE_CHECKING:
    from playwright.sync_api import Browser

MAX_README_LINES = 150
SHOW = "bodies => { document.querySelector('article').innerHTML = bodies; }"
MEASURE = """() => ({
  page: document.documentElement.scrollWidth,
  copied: [...document.querySelectorAll("pre > code")].every((code) => {
    code.setAttribute("data-md-copying", ""); // as the theme does
    const text = code.innerText;
    code.removeAttribute("data-md-copying");
    return text.trimEnd() === code.textContent.trimEnd();
  }),
  cut: [...document.querySelectorAll("pre > code")]
    .filter((code) => code.scrollWidth > code.clientWidth)
    .map((code) => ({
      text: code.textContent.slice(0, 200), isOutput: code.closest(".language-text") !== null,
    })),
})"""


def build(folder: Path, config: Path = ROOT / "mkdocs.yml") -> subprocess.CompletedProcess[str]:
    """`mkdocs build --strict`: a warning is an error. (With `--quiet` warnings would not count.)"""
    arguments = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "-f",
        str(config),
        "-d",
        str(folder),
    ]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(
        arguments, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = build(folder)
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr
    return folder


class Links(HTMLParser):
    """Links of a page, the resources that it loads, and its anchors."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(page.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.anchors |= {value for key in ("id", "name") if (value := found.get(key))}
        address = found.get("href") or found.get("src")
        if address is not None:
            (self.links if tag == "a" else self.loaded).append(address)


@pytest.mark.slow(seconds=8)
def test_every_link_of_the_site_resolves(site: Path) -> None:
    pages = {page: Links(page) for page in site.rglob("*.html") if page.name != "404.html"}
    assert len(pages) > 30
    for page, found in pages.items():
        for address in [*found.links, *found.loaded]:
            path, anchor = urldefrag(unquote(address))
            if re.match(r"[a-z]+:", path):
                continue
            target = (page.parent / path).resolve() if path else page
            assert target.is_file(), (page.name, address)
            if anchor and target.suffix == ".html" and not anchor.startswith("__"):
                assert anchor in pages[target].anchors, (page.name, address)


@pytest.mark.slow(seconds=8)
def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        assert not [
            address for address in Links(page).loaded if re.match(r"[a-z]+:|//", address)
        ], page.name


@pytest.mark.slow(seconds=8)
def test_references_have_every_key_metric_command_and_name(site: Path) -> None:
    def text(name: str) -> str:
        return (site / "reference" / f"{name}.html").read_text("utf-8")

    keys = text("yaml")
    assert all(f"<code>{key}</code>" in keys for key in KEYS)
    assert all(
        f"<code>{key}</code>" in keys
        for section in SWEEP_SECTIONS.values()
        for key in section.fields()
    )
    assert all(f"<code>{name}</code>" in text("metrics") for name in METRICS.all())
    assert all(f"<code>{name}</code>" in text("spaces") for name in ready_spaces())
    assert all(f"<code>{name}</code>" in text("python") for name in specfrontier.__all__)
    listed = re.findall(
        r"^  ([a-z]+) ", command("--help").out.partition("Commands:")[2], flags=re.M
    )
    assert len(listed) > 10
    assert all(f"<code>specfrontier {name}</code>" in text("commands") for name in listed)


@pytest.mark.slow(seconds=8)
def test_no_code_is_cut_off(site: Path, browser: Browser) -> None:
    """At the width of a desk and of a phone no page is wider than the window, and code wraps. Only
    the output of a terminal, which has columns, may scroll on the phone.
    """
    bodies = [
        found[1]
        for page in sorted(site.rglob("*.html"))
        if (found := re.search(r"<article[^>]*>(.*)</article>", page.read_text("utf-8"), re.S))
    ]
    assert sum(body.count("<pre>") for body in bodies) > 100
    opened = browser.new_page(java_script_enabled=False)
    opened.goto((site / "index.html").as_uri())
    opened.evaluate(SHOW, "".join(bodies))
    for width, scrolls in ((1440, False), (390, True)):
        opened.set_viewport_size({"width": width, "height": 900})
        found = opened.evaluate(MEASURE)
        assert found["page"] == width
        assert found["copied"], "with no line between two others"
        assert [code for code in found["cut"] if not (scrolls and code["isOutput"])] == []
    opened.close()


def test_a_key_that_takes_a_value_or_a_list_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs" / "hooks")
    from reference_pages import yaml_keys

    quality, _, later = yaml_keys().partition("### `timing`")
    assert "| `batch` | `auto` or whole number in [1, 65536] |" in quality
    rows = dict(re.findall(r"^\| `(\S+)` \| ([^|]+) \|", later, re.MULTILINE))
    assert rows["batch"] == "whole number or list of whole numbers in [1, 65536]"
    assert rows["rungs"] == "list of whole numbers at least 2"
    assert (rows["precision"], rows["options"], rows["sampler"]) == (
        "number in [0, 1]",
        "mapping",
        "text",
    )
    assert rows["paths"] == "list of lists of whole numbers at least 0"


@pytest.mark.slow(seconds=8)
def test_a_broken_link_fails_the_build(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("[nowhere](nowhere.md)")
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))
    kept = {
        key: value for key, value in settings.items() if key not in {"nav", "hooks", "docs_dir"}
    }
    (tmp_path / "mkdocs.yml").write_text(yaml.safe_dump(kept))
    built = build(tmp_path / "site", tmp_path / "mkdocs.yml")
    assert built.returncode == 1
    assert "nowhere.md" in built.stderr


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= MAX_README_LINES


def test_readme_picture_and_notebook_show_one_sweep() -> None:
    """The values of the front in README's table, in the picture's metadata and in the notebook."""
    (output,) = (
        block.text for block in blocks(ROOT / "README.md") if block.text.startswith("trial ")
    )
    lines = [line for line in output.splitlines() if re.match(r"trial |\d", line)]
    head, *rows = (re.split(r"\s{2,}", line) for line in lines)
    x, y = head[2:4]
    with Image.open(ROOT / "docs" / "images" / "quickstart.png") as picture:
        assert picture.info["Description"].splitlines() == [
            f"trial {number}: {x} {speed}, {y} {quality}" for number, _, speed, quality, _ in rows
        ]
    notebook = json.loads((ROOT / "docs" / "fronts.ipynb").read_text("utf-8"))
    outputs = json.dumps(
        [output for cell in notebook["cells"] for output in cell.get("outputs", ())],
        ensure_ascii=False,
    )
    assert len(rows) > 1
    for _, setting, *values, _ in rows:
        assert all(text in outputs for text in (setting, *values))


def test_version_and_papers_of_the_citation_are_the_projects() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert (citation["title"].split(":")[0], citation["version"]) == (
        project["name"],
        project["version"],
    )
    assert citation["license"] == project["license"]
    assert f"## {project['version']}" in (ROOT / "CHANGELOG.md").read_text("utf-8")
    papers = (ROOT / "docs" / "papers.md").read_text("utf-8")
    assert len(citation["references"]) > 3
    assert all(f"]({paper['url']})" in papers for paper in citation["references"])
    linked = re.findall(r"\[arXiv:([\d.]+)\]\(https://arxiv.org/abs/([\d.]+)\)", papers)
    assert len(linked) > 10
    assert all(label == address for label, address in linked)


def anchors(page: Path) -> set[str]:
    """Anchors of a Markdown page's headings, as hosts of repositories make them."""
    titles = re.findall(r"^#+ (.+)$", prose(page), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_resolve_in_the_repository_too(page: Path) -> None:
    for address in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        path, anchor = urldefrag(address)
        if re.match(r"https://", path):
            continue
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), address
        assert target.is_relative_to(ROOT), address
        assert not anchor or anchor in anchors(target), address
