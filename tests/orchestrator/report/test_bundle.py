"""One script of ES modules: their names stay their own, each runs once, after those that it
imports.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from orchestrator.report import bundle as bundler
from orchestrator.report.bundle import bundle
from tests.fakes.waiting import HANG_S

FOLDER = Path(bundler.__file__).parent
IMPORT = re.compile(r'^import (?:\{([^}]*)\} from )?"([^"]+)";$', re.MULTILINE)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(bundler, "ASSETS", tmp_path)
    return tmp_path


def test_modules_are_linked(folder: Path) -> None:
    (folder / "base.js").write_text(
        "const hidden = 1;\nexport const log = [];\nlog.push(`base ${hidden}`);\n"
    )
    (folder / "other.js").write_text(
        'import {\n  log,\n} from "./base.js";\nconst hidden = 2;\nlog.push(hidden);\n'
    )
    (folder / "page.js").write_text(
        'import "./other.js";\nimport { log } from "./base.js";\n'
        "export function start(sections) {\n  sections.mine.draw(log);\n}\n"
    )
    (folder / "mine.js").write_text(
        'import { log } from "../assets/base.js";\nexport async function draw(given) {\n'
        "  console.log(given === log, log.join(), typeof hidden);\n}\n"
    )
    script = bundle({"mine": folder / "mine.js"})
    if (node := shutil.which("node")) is None:
        pytest.skip("no node")
    ran = subprocess.run(
        [node, "-e", script], capture_output=True, text=True, check=True, timeout=HANG_S
    )
    assert ran.stdout == "true base 1,2 undefined\n"


def test_a_circle_is_refused(folder: Path) -> None:
    (folder / "page.js").write_text('import { a } from "./other.js";\n')
    (folder / "other.js").write_text('import { b } from "./page.js";\n')
    with pytest.raises(ValueError, match=r"\$page > \$other > \$page"):
        bundle({})


def test_what_is_imported_is_exported_and_used() -> None:
    texts = {
        path: path.read_text("utf-8")
        for name in ("assets", "sections")
        for path in (FOLDER / name).glob("*.js")
    }
    exported = {
        path: set(
            re.findall(r"^export (?:async )?(?:function|const|class) (\w+)", text, re.MULTILINE)
        )
        for path, text in texts.items()
    }
    imported: dict[Path, set[str]] = {path: set() for path in texts}
    for path, text in texts.items():
        for names, place in IMPORT.findall(text):
            found = {name.strip() for name in names.split(",") if name.strip()}
            imported[(path.parent / place).resolve()] |= found
            body = IMPORT.sub("", text)
            assert {name for name in found if not re.search(rf"\b{name}\b", body)} == set(), path
    for path in texts:
        drawn = (
            {"start"}
            if path.name == "page.js"
            else {"draw"}
            if path.parent.name == "sections"
            else set()
        )
        assert imported[path] | drawn == exported[path], path
