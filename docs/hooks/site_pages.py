"""MkDocs hooks: pages that are made when the site is built, and links of the repository's files as
the site needs them.

README, CONTRIBUTING and CHANGELOG become pages, the notebook one with its committed outputs;
`reference_pages` writes the references from the code. Links to other files of the repository lead
to copies of them.
"""

from __future__ import annotations

import base64
import json
import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(Path(__file__).parent))

import reference_pages  # noqa: E402  # beside this file, which MkDocs loads by its path

ROOT_PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
COPIED = ("LICENSE", "CITATION.cff", "ray_cluster.yaml")
NOTEBOOK, NOTEBOOK_PAGE = "docs/fronts.ipynb", "fronts.md"
_LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(?=[)#])")
_FENCE = re.compile(r"^```.*?^```$", re.M | re.S)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and copies that `docs/` does not hold."""
    for source, page in ROOT_PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text("utf-8")))
    for name in COPIED:
        files.append(File.generated(config, f"files/{name}", abs_src_path=str(ROOT / name)))
    text, pictures = notebook_page(json.loads((ROOT / NOTEBOOK).read_text("utf-8")))
    files.append(File.generated(config, NOTEBOOK_PAGE, content=text))
    for name, picture in pictures.items():
        files.append(File.generated(config, name, content=picture))
    for name, text in reference_pages.pages().items():
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page with its links as the site needs them; code stays as it is."""
    pages = {page: source for source, page in ROOT_PAGES.items()}
    folder = posixpath.dirname(pages.get(page.file.src_uri, f"docs/{page.file.src_uri}"))
    start = posixpath.dirname(page.file.src_uri)

    def replaced(match: re.Match[str]) -> str:
        return posixpath.relpath(
            site_path(posixpath.normpath(posixpath.join(folder, match[1]))), start or "."
        )

    parts = re.split(f"({_FENCE.pattern})", markdown, flags=_FENCE.flags)
    return "".join(
        part if index % 2 else _LINK.sub(replaced, part) for index, part in enumerate(parts)
    )


def site_path(path: str) -> str:
    """Where the site has a file of the repository."""
    if path == NOTEBOOK:
        return NOTEBOOK_PAGE
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return ROOT_PAGES.get(path, f"files/{path}")


def notebook_page(notebook: dict[str, Any]) -> tuple[str, dict[str, bytes]]:
    """The notebook as Markdown, and its pictures by path."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            parts += _output(output, pictures)
    return "\n\n".join(parts), pictures


def _output(output: dict[str, Any], pictures: dict[str, bytes]) -> Iterator[str]:
    """One output of a cell: its picture, else its HTML, else its text."""
    data = output.get("data", {})
    if "image/png" in data:
        name = f"images/fronts-{len(pictures)}.png"
        pictures[name] = base64.b64decode(data["image/png"])
        yield f"![output]({name})"
    elif "text/html" in data:
        html = re.sub(r"<style.*?</style>", "", "".join(data["text/html"]), flags=re.S)
        html = re.sub(r"<table[^>]*>", "<table>", html)  # the site's own style
        yield f"<div>{' '.join(html.split())}</div>"  # a blank line would end the HTML block
    else:
        text = "".join(output.get("text") or data.get("text/plain", ""))
        yield f"```text\n{text.rstrip()}\n```"
