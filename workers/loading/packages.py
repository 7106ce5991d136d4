"""Files that installed Python packages ship, in the place of paths: package://MODULE/FILE.

The package is not imported.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Final

SCHEME: Final = "package://"
_REFERENCE = re.compile(r"package://(?P<module>[A-Za-z_]\w*)/(?P<file>.+)")


def local_path(text: str) -> str:
    """The file on this machine.

    Raises:
        ValueError: the reference has another form, the package is not installed, or it has no such
            file.
    """
    found = _REFERENCE.fullmatch(text)
    if found is None or ".." in Path(found["file"]).parts:
        raise ValueError(f"{text}: must be package://MODULE/FILE")
    spec = find_spec(found["module"])
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    if not folders:
        raise ValueError(
            f"{text}: no package {found['module']} is installed; install it with pip, or give the "
            "path of the file"
        )
    for folder in folders:
        path = Path(folder) / found["file"]
        if path.exists():
            return str(path.absolute())
    raise ValueError(f"{text}: the package has no such file")
