"""benchmarks.structure on small trees."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks.structure import (
    Budget,
    budgets,
    crossing_names,
    duplicated_lines,
    find_cycles,
    import_graph,
    measure,
    measure_commit,
    package_graph,
    packed_statements,
    parameter_count,
    percentile,
    read_modules,
    top_level_names,
)

REPEATED = "".join(f"    x = {number}\n" for number in range(7))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    files = {
        "workers/__init__.py": "",
        "workers/evaluate.py": "from workers.models import cache\n",
        "workers/models/__init__.py": "",
        "workers/models/cache.py": f"import os\n\ndef first(a, *, b):\n{REPEATED}",
        "workers/models/families/__init__.py": "",
        "workers/models/families/llama.py": "from .. import cache\nfrom ..text import encode\n",
        "workers/models/text.py": "def encode():\n    from workers.models.families import llama\n",
        "workers/drafters/__init__.py": "",
        "workers/drafters/eagle.py": (
            f"SIZE = 1\n_A, _B = 2, 3\n\nasync def _second():\n    # other\n{REPEATED}"
        ),
        "tests/test_eagle.py": "def test_eagle() -> None:\n    pass\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, "utf-8")
    return tmp_path


def test_cycles_are_found_through_relative_and_lazy_imports(tree: Path) -> None:
    graph = import_graph(read_modules(tree, ["workers"]))
    assert graph["workers.evaluate"] == {"workers.models.cache"}
    assert graph["workers.models.families.llama"] == {
        "workers.models.cache",
        "workers.models.text",
    }
    assert find_cycles(graph) == [["workers.models.families.llama", "workers.models.text"]]
    assert find_cycles(package_graph(graph)) == []


def test_typing_only_imports_make_package_cycles(tree: Path) -> None:
    source = (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from workers.drafters.eagle "
        "import SIZE\n"
    )
    (tree / "workers/models/cache.py").write_text(source, "utf-8")
    (tree / "workers/drafters/medusa.py").write_text("import workers.models.cache\n", "utf-8")
    graph = import_graph(read_modules(tree, ["workers"]))
    assert len(find_cycles(graph)) == 1, "no module imports itself"
    assert find_cycles(package_graph(graph)) == [["workers.drafters", "workers.models"]]


def test_separate_and_nested_cycles() -> None:
    assert find_cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a", "e"}, "e": {"d"}}) == [
        ["b", "c"],
        ["d", "e"],
    ]
    assert find_cycles({"a": {"b"}, "b": {"a", "c"}, "c": {"a"}}) == [["a", "b", "c"]]
    assert find_cycles({"a": {"b", "c"}, "b": {"d"}, "c": {"d"}}) == []


def test_names_parameters_and_duplicates(tree: Path) -> None:
    modules = read_modules(tree, ["workers"])
    assert top_level_names(modules["workers.drafters.eagle"]) == {"SIZE", "_A", "_B", "_second"}
    assert parameter_count(modules["workers.models.cache"].functions[0]) == 2
    assert duplicated_lines(modules.values()) == 7


def test_budgets_of_packages(tree: Path) -> None:
    """Comments and docstrings are no tokens; an import of a module as a whole is one name."""
    source = (
        '"""Words."""\n\nfrom workers.drafters.eagle import SIZE, _A\n\n\nclass Third:  # words\n '
        "   x = 1\n"
    )
    (tree / "workers/models/text.py").write_text(source, "utf-8")
    modules = read_modules(tree, ["workers"])
    assert crossing_names(modules) == {
        "workers.models": {("workers.models.cache", "")},
        "workers.drafters": {("workers.drafters.eagle", "SIZE"), ("workers.drafters.eagle", "_A")},
    }
    found = budgets(modules)
    assert found["workers"] == Budget(tokens=6, public=0, crossing=0)
    assert (found["workers.models"].public, found["workers.models"].crossing) == (2, 1)
    (tree / "workers/models/cache.py").write_text("", "utf-8")
    (tree / "workers/models/families/llama.py").write_text("", "utf-8")
    assert budgets(read_modules(tree, ["workers"]))["workers.models"].tokens == 10 + 3 + 3


def test_packed_statements(tree: Path) -> None:
    source = (
        "a, b = 1, 2\n"
        "c, d = divmod(7, 2)\n"
        "e = 1 if a else 2 if b else 3\n"
        "f = [x for x in c if x]\n"
        "g = {x: y for x in c for y in d if x}\n"
    )
    (tree / "workers/models/text.py").write_text(source, "utf-8")
    modules = read_modules(tree, ["workers"])
    counts = packed_statements([modules["workers.models.text"]])
    assert counts == {
        "pairs": 1,
        "conditionals": 2,
        "nested conditionals": 1,
        "comprehensions": 2,
        "long comprehensions": 1,
    }


def test_rows_of_a_tree(tree: Path) -> None:
    rows = measure(tree)
    assert rows["product: files"] == "9"
    assert rows["product: lines of a function, 50 % / 90 % / max"] == "8 / 9 / 9"
    assert rows["tests: files"] == "1"
    assert rows["top-level names, public / private"] == "3 / 3"
    assert rows["public functions and classes"] == "2"
    assert rows["crossing names"] == "1"
    assert rows["module cycles"] == "1: workers.models.families.llama, workers.models.text"
    assert rows["package cycles"] == "0"


def test_rows_of_a_commit(tree: Path) -> None:
    before = measure(tree)
    git = ["git", "-C", str(tree), "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *command], check=True)
    (tree / "workers/more.py").write_text("X = 1\n", "utf-8")
    assert measure_commit(tree, "HEAD") == before
    assert measure(tree)["product: files"] == "10"


def test_percentiles() -> None:
    assert [percentile(range(1, 11), percent) for percent in (50, 90, 100)] == [5, 9, 10]
    assert percentile([], 50) == 0
