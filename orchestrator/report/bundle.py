"""One script of the page's ES modules, because a page that is opened from a file cannot load
modules.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.abc import Traversable
from importlib.resources import files

ASSETS = files("orchestrator.report") / "assets"
_IMPORT = re.compile(
    r'^import (?:\{(?P<names>[^}]*)\} from )?"\.[./]*/(?:assets/)?(?P<file>[\w.-]+)";\n',
    re.MULTILINE,
)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|const|class) (\w+))", re.MULTILINE)


def bundle(scripts: Mapping[str, Traversable]) -> str:
    """A script that calls `start` of page.js with the modules of the sections. scripts: their
    files, by name.

    Each module is a function that runs once, after those that it imports, and returns what it
    exports, which must be constant. Its other names stay its own.

    Raises:
        ValueError: modules import each other in a circle.
    """
    modules: dict[str, str] = {}

    def add(file: Traversable, name: str, importers: tuple[str, ...] = ()) -> str:
        if name in importers:
            raise ValueError(f"a circle of imports: {' > '.join([*importers, name])}")

        def link(match: re.Match[str]) -> str:
            source = add(ASSETS / match["file"], _variable(match["file"]), (*importers, name))
            return f"const {{{match['names']}}} = {source};\n" if match["names"] else ""

        if name not in modules:
            body = _IMPORT.sub(link, file.read_text("utf-8"))
            exported = ", ".join(_EXPORT.findall(body))
            modules[name] = (
                f"const {name} = (() => {{\n{_EXPORT.sub('', body)}return {{ {exported} "
                "};\n})();\n"
            )
        return name

    page = add(ASSETS / "page.js", _variable("page.js"))
    sections = [
        f"{name!r}: {add(file, _variable(f'section_{name}'))}" for name, file in scripts.items()
    ]
    return f'"use strict";\n{"".join(modules.values())}{page}.start({{ {", ".join(sections)} }});\n'


def _variable(file: str) -> str:
    return f"${re.sub(r'[^a-zA-Z0-9]', '_', file.removesuffix('.js'))}"
