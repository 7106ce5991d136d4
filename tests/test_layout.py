"""The layout: imports run one way, few modules import an outside library, no file or function is too long.

Imports are read from the syntax trees, so that those inside functions count as well.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("search_spaces", "workers", "orchestrator")  # each may import itself and those before it
SWEEP_ONLY = frozenset({"ray", "optuna", "mlflow", "typer"})
DECODING = ("workers.decoding", "workers.models", "workers.drafters")
DECODING_MAY_IMPORT = frozenset({"torch", "numpy", "safetensors", "transformers"})
MAX_LINES, MAX_FUNCTION_LINES = 320, 70


@dataclass(frozen=True)
class Import:
    """`target` is the module named; `at_import` is False inside functions, `typing_only` True under TYPE_CHECKING."""

    target: str
    line: int
    at_import: bool
    typing_only: bool

    @property
    def top(self) -> str:
        return self.target.partition(".")[0]


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def sources() -> dict[str, tuple[Path, ast.Module]]:
    files = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return {module_name(path): (path, ast.parse(path.read_text("utf-8"), str(path))) for path in files}


def names(node: ast.Import | ast.ImportFrom, package: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    base = node.module or ""
    if node.level:
        anchor = package.split(".")[: len(package.split(".")) - node.level + 1]
        base = ".".join([*anchor, base] if base else anchor)
    for alias in node.names:
        full = f"{base}.{alias.name}"
        yield full if full in sources() else base


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}


def walk(node: ast.AST, package: str, at_import: bool, typing_only: bool) -> Iterator[Import]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield from (Import(name, node.lineno, at_import, typing_only) for name in names(node, package))
    elif isinstance(node, ast.If) and is_type_checking(node):
        for statement in node.body:
            yield from walk(statement, package, at_import, True)
        for statement in node.orelse:
            yield from walk(statement, package, at_import, typing_only)
    else:
        inside = at_import and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            yield from walk(child, package, inside, typing_only)


@cache
def imports() -> dict[str, tuple[Import, ...]]:
    found = {}
    for module, (path, tree) in sources().items():
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        found[module] = tuple(walk(tree, package, at_import=True, typing_only=False))
    return found


def forbidden_imports(allowed: dict[str, frozenset[str]], scope: tuple[str, ...]) -> list[str]:
    """Imports of modules under `scope` whose top-level package is neither standard nor in allowed[scope]."""
    return [
        f"{module}:{found.line} imports {found.target}"
        for prefix in scope
        for module, all_found in imports().items()
        if module == prefix or module.startswith(prefix + ".")
        for found in all_found
        if found.top not in sys.stdlib_module_names and found.top not in allowed[prefix]
    ]


def test_all_packages_are_found() -> None:
    assert set(PACKAGES) <= set(sources()), "run from a checkout that holds all three packages"
    assert any(found.top == "torch" for all_found in imports().values() for found in all_found)


def test_imports_run_one_way() -> None:
    upwards = [
        f"{module}:{found.line} imports {found.target}"
        for module, all_found in imports().items()
        for found in all_found
        if found.top in PACKAGES and PACKAGES.index(found.top) > PACKAGES.index(module.partition(".")[0])
    ]
    assert not upwards


def test_workers_need_no_sweep_libraries() -> None:
    """Except that the actor module imports ray."""
    exceptions = {"workers.actor": {"ray"}}
    wrong = [
        f"{module}:{found.line} imports {found.target}"
        for module, all_found in imports().items()
        if module.startswith("workers")
        for found in all_found
        if found.top in SWEEP_ONLY - exceptions.get(module, set())
    ]
    assert not wrong


def test_search_spaces_import_torch_for_typing_only() -> None:
    """And one module imports yaml."""
    allowed = frozenset({"search_spaces", "torch"})
    wrong = forbidden_imports({"search_spaces": allowed | {"yaml"}}, ("search_spaces",))
    importers = {module for module, found in imports().items() if any(entry.top == "yaml" for entry in found)}
    assert not wrong
    assert {module for module in importers if module.startswith("search_spaces")} == {"search_spaces.documents"}
    at_run_time = [
        f"{module}:{found.line}"
        for module, all_found in imports().items()
        if module.startswith("search_spaces")
        for found in all_found
        if found.top == "torch" and not found.typing_only
    ]
    assert not at_run_time


def test_the_decoding_library_needs_little() -> None:
    allowed = DECODING_MAY_IMPORT | {"search_spaces", "workers"}
    assert not forbidden_imports(dict.fromkeys(DECODING, allowed), DECODING)


def test_decoding_does_not_reach_into_training_or_metrics() -> None:
    wrong = [
        f"{module}:{found.line} imports {found.target}"
        for module, all_found in imports().items()
        if module.startswith(DECODING)
        for found in all_found
        if found.target.startswith(("workers.training", "workers.metrics"))
    ]
    assert not wrong


def find_cycle(graph: dict[str, set[str]]) -> list[str]:
    """One cycle of the graph as a path that ends where it began; empty if there is none."""
    done: set[str] = set()
    path: list[str] = []

    def visit(node: str) -> list[str]:
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done:
            return []
        path.append(node)
        for neighbour in sorted(graph.get(node, ())):
            if cycle := visit(neighbour):
                return cycle
        path.pop()
        done.add(node)
        return []

    return next((cycle for node in sorted(graph) if (cycle := visit(node))), [])


def test_no_cycles_at_import_time() -> None:
    graph = {
        module: {f.target for f in found if f.at_import and not f.typing_only and f.target in sources()} - {module}
        for module, found in imports().items()
    }
    assert find_cycle(graph) == []


def test_find_cycle() -> None:
    assert find_cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == ["b", "c", "b"]
    assert find_cycle({"a": {"b", "c"}, "b": {"d"}, "c": {"d"}}) == []


def test_files_and_functions_stay_short() -> None:
    too_long = []
    for path, tree in sources().values():
        lines = len(path.read_text("utf-8").splitlines())
        if lines > MAX_LINES:
            too_long.append(f"{path.relative_to(ROOT)} has {lines} lines")
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > MAX_FUNCTION_LINES:
                    too_long.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name} has {length} lines")
    assert not too_long


def test_packages_are_typed_and_modules_have_docstrings() -> None:
    for package in PACKAGES:
        assert (ROOT / package / "py.typed").is_file()
    without = [module for module, (_, tree) in sources().items() if not ast.get_docstring(tree)]
    assert not without
