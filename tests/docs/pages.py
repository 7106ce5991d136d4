"""The documentation's pages, as their readers see them: README and its companions, and
docs/*.md.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
_BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>[a-z ]+)(?:: (?P<detail>[^\n]+))? "
    r"-->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.M | re.S,
)


@dataclass(frozen=True)
class Block:
    """A fenced block. mark, detail: of the comment above it, such as `needs` and `gpu`; empty if
    not there.
    """

    page: Path
    line: int
    language: str
    text: str
    mark: str
    detail: str

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    text = page.read_text("utf-8")
    return [
        Block(
            page,
            1 + text.count("\n", 0, found.start()),
            found["language"],
            found["text"],
            found["mark"] or "",
            found["detail"] or "",
        )
        for found in _BLOCK.finditer(text)
    ]


def prose(page: Path) -> str:
    """The text of a page without its code."""
    return re.sub(r"`[^`\n]*`", "", _BLOCK.sub("", page.read_text("utf-8")))


def inline_code(page: Path) -> list[str]:
    """The code within the sentences of a page."""
    text = _BLOCK.sub("", page.read_text("utf-8"))
    return [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", text)]


def shell_blocks(page: Path) -> list[Block]:
    return [block for block in blocks(page) if block.language == "sh"]


def commands_of(block: Block) -> Iterator[list[str]]:
    """The words of each command of a block, without its comment and its variables."""
    for line in block.text.splitlines():
        if words := shlex.split(line, comments=True):
            yield [
                word for index, word in enumerate(words) if index or not re.match(r"[A-Z_]+=", word)
            ]
