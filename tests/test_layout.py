"""The layout: imports run one way, packages have no cycles, each outside library has one module
that touches it.

Everything is read from syntax trees, so an import inside a function or under TYPE_CHECKING counts
as well.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import yaml

from benchmarks.structure import PRODUCT, budgets, read_modules

ROOT = Path(__file__).parents[1]
# each may import itself and those before it
LAYERS = ("search_spaces", "workers", "orchestrator", "specfrontier")
ORCHESTRATOR_LAYERS = (  # likewise
    "store",
    "front",
    "shown",
    "cluster",
    "views",
    "report",
    "replay",
    "run",
    "launch",
    "doctor",
    "cli",
)
SWEEP_LIBRARIES = frozenset({"ray", "optuna", "mlflow", "typer"})
DECODING = ("workers.decoding", "workers.models", "workers.drafters")
DECODING_LIBRARIES = frozenset({"torch", "numpy", "safetensors", "transformers"})
MAX_FILE_LINES, MAX_FUNCTION_LINES, MAX_PARAMETERS = 500, 60, 10
# Functions that are longer on purpose.
STILL_LONG = {
    # one loop over the children, all of whose ten variables change in it
    ("workers.decoding.accept_kernel", "_verify_children"),
}
MIN_SLACK, SLACK_SHARE = 2, 0.02  # how far a figure may be below its budget
GROWTH_SHARE = 0.005  # of tokens that need no reason: a mended fault, a name in full
MIN_WORDS = 5  # of a reason
MAX_COLUMNS = 120  # of the report's assets; ruff checks Python


@dataclass(frozen=True)
class Import:
    """An import statement's target module. typing_only: it stands under TYPE_CHECKING."""

    target: str
    line: int
    typing_only: bool

    @property
    def library(self) -> str:
        return self.target.partition(".")[0]


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def sources() -> dict[str, tuple[Path, ast.Module]]:
    """Path and syntax tree of every product module by name."""
    files = sorted(path for layer in LAYERS for path in (ROOT / layer).rglob("*.py"))
    return {
        module_name(path): (path, ast.parse(path.read_text("utf-8"), str(path))) for path in files
    }


def target_modules(node: ast.Import | ast.ImportFrom, package: str) -> Iterator[str]:
    """The modules that an import statement in `package` names."""
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
    return isinstance(node, ast.If) and ast.unparse(node.test) in {
        "TYPE_CHECKING",
        "typing.TYPE_CHECKING",
    }


def find_imports(node: ast.AST, package: str, typing_only: bool = False) -> Iterator[Import]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield from (
            Import(name, node.lineno, typing_only) for name in target_modules(node, package)
        )
        return
    body = node.body if isinstance(node, ast.If) and is_type_checking(node) else []
    for child in ast.iter_child_nodes(node):
        yield from find_imports(child, package, typing_only or child in body)


@cache
def imports() -> dict[str, tuple[Import, ...]]:
    """All imports of every product module."""
    found = {}
    for module, (path, tree) in sources().items():
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        found[module] = tuple(find_imports(tree, package))
    return found


def statements(prefixes: tuple[str, ...]) -> Iterator[tuple[str, Import]]:
    """(module, import) for every import in the modules at or below the prefixes."""
    for module, found in imports().items():
        if any(module == prefix or module.startswith(prefix + ".") for prefix in prefixes):
            yield from ((module, entry) for entry in found)


def report(violations: Iterator[tuple[str, Import]]) -> list[str]:
    return [f"{module}:{entry.line} imports {entry.target}" for module, entry in violations]


def find_cycle(graph: Mapping[str, set[str]]) -> list[str]:
    """One cycle of the graph as a path that ends at its first node; empty if there is none."""
    visited: set[str] = set()
    path: list[str] = []

    def visit(node: str) -> list[str]:
        if node in path:
            return [*path[path.index(node) :], node]
        if node in visited:
            return []
        path.append(node)
        for neighbour in sorted(graph.get(node, ())):
            if cycle := visit(neighbour):
                return cycle
        path.pop()
        visited.add(node)
        return []

    return next((cycle for node in sorted(graph) if (cycle := visit(node))), [])


def import_graph(depth: int | None = None) -> dict[str, set[str]]:
    """Which module imports which; names are cut to their first `depth` parts (2: packages)."""
    graph: dict[str, set[str]] = {}
    for module, found in imports().items():
        node = ".".join(module.split(".")[:depth])
        targets = {
            ".".join(entry.target.split(".")[:depth])
            for entry in found
            if entry.target in sources()
        }
        graph.setdefault(node, set()).update(targets - {node})
    return graph


def test_imports_run_one_way() -> None:
    upwards = (
        (module, entry)
        for module, entry in statements(LAYERS)
        if entry.library in LAYERS
        and LAYERS.index(entry.library) > LAYERS.index(module.partition(".")[0])
    )
    assert not report(upwards)


def test_orchestrator_packages_run_one_way() -> None:
    def layer(module: str) -> int:
        package = module.split(".")[1] if "." in module else ""
        return ORCHESTRATOR_LAYERS.index(package) if package in ORCHESTRATOR_LAYERS else -1

    upwards = (
        (module, entry)
        for module, entry in statements(("orchestrator",))
        if layer(module) >= 0
        and entry.library == "orchestrator"
        and layer(entry.target) > layer(module)
    )
    assert not report(upwards)


def test_modules_have_no_cycles() -> None:
    assert find_cycle(import_graph()) == []


def test_packages_have_no_cycles() -> None:
    assert find_cycle(import_graph(depth=2)) == []


def test_find_cycle_sees_a_cycle() -> None:
    assert find_cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == ["b", "c", "b"]
    assert find_cycle({"a": {"b", "c"}, "b": {"d"}, "c": {"d"}}) == []


def test_lazy_and_typing_imports_are_seen() -> None:
    code = "if TYPE_CHECKING:\n    import a\nelse:\n    import b\ndef f():\n    from c import d\n"
    found = list(find_imports(ast.parse(code), "package"))
    assert [(entry.target, entry.typing_only) for entry in found] == [
        ("a", True),
        ("b", False),
        ("c", False),
    ]


def test_workers_do_not_import_sweep_libraries() -> None:
    """workers/ runs where Ray, Optuna and MLflow are not installed; only the Ray actor imports
    ray.
    """
    allowed = {"workers.actor": {"ray"}}
    wrong = (
        (module, entry)
        for module, entry in statements(("workers",))
        if entry.library in SWEEP_LIBRARIES - allowed.get(module, set())
    )
    assert not report(wrong)


def test_private_names_of_ray_are_used_in_one_module() -> None:
    """Also by text, as in `ray._private.worker` and in strings."""
    found = {
        module
        for module, (path, _) in sources().items()
        if re.search(r"\bray\.(_[a-z]|core\b)", path.read_text("utf-8"))
    }
    assert found == {"orchestrator.cluster.ray_internals"}


def test_yaml_is_used_in_one_module() -> None:
    """Else a scalar such as `no` could mean one thing to a launch and another to a report.
    presets.yaml is read by a quicker parser, and a test compares the two.
    """
    users = [
        name
        for name, entries in imports().items()
        if any(entry.library == "yaml" for entry in entries)
    ]
    assert users == ["search_spaces.documents", "search_spaces.presets"]


def test_search_spaces_import_torch_for_typing_only() -> None:
    libraries = {"search_spaces", "torch", "yaml", "pydantic", "pydantic_core"}
    wrong = (
        (module, entry)
        for module, entry in statements(("search_spaces",))
        if (entry.library not in sys.stdlib_module_names and entry.library not in libraries)
        or (entry.library == "torch" and not entry.typing_only)
    )
    assert not report(wrong)


def test_decoding_imports_four_libraries() -> None:
    """And in the modules of kernels, or where they are launched, Triton, which torch brings where
    it has CUDA.
    """
    allowed = DECODING_LIBRARIES | {"search_spaces", "workers", "triton"}
    wrong = (
        (module, entry)
        for module, entry in statements(DECODING)
        if entry.library not in sys.stdlib_module_names and entry.library not in allowed
    )
    assert not report(wrong)


def test_files_and_functions_stay_short() -> None:
    long = []
    for module, (path, tree) in sources().items():
        if (lines := len(path.read_text("utf-8").splitlines())) > MAX_FILE_LINES:
            long.append(f"{module}: {lines} lines")
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            parameters = len([*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs])
            if length > MAX_FUNCTION_LINES and (module, node.name) not in STILL_LONG:
                long.append(f"{module}:{node.lineno} {node.name}: {length} lines")
            # a kernel has its addresses and sizes one by one
            is_exempt = module.endswith("_kernel")
            if parameters > MAX_PARAMETERS and not is_exempt:
                long.append(f"{module}:{node.lineno} {node.name}: {parameters} parameters")
    assert not long


def test_packages_keep_within_their_budgets() -> None:
    """Lower a figure that has fallen; `raised` needs a sentence for one that rises."""
    document = yaml.safe_load((ROOT / "tests" / "budgets.yaml").read_text("utf-8"))
    limits: dict[tuple[str, str], int] = {
        (package, figure): limit
        for package, figures in document["packages"].items()
        for figure, limit in figures.items()
    }
    for entry in document["raised"]:
        assert len(entry["why"].split()) >= MIN_WORDS, entry
        limits[entry["package"], entry["figure"]] += entry["by"]
    measured = {
        (package, figure): value
        for package, budget in budgets(read_modules(ROOT, PRODUCT)).items()
        for figure, value in asdict(budget).items()
    }
    assert measured.keys() == limits.keys()
    over = {
        key: (value, limits[key])
        for key, value in measured.items()
        if value > limits[key] * (1 + (GROWTH_SHARE if key[1] == "tokens" else 0))
    }
    assert not over, "over budget"
    slack = {key: max(MIN_SLACK, SLACK_SHARE * limits[key]) for key in limits}
    assert not {
        key: value for key, value in measured.items() if value < limits[key] - slack[key]
    }, "lower the budget"


def test_scripts_and_style_sheets_stay_short() -> None:
    """The report's own; bundled libraries are in a folder below."""
    report = ROOT / "orchestrator" / "report"
    long, files = (
        [],
        [path for folder in ("assets", "sections") for path in (report / folder).glob("*.[jc]s*")],
    )
    for path in files:
        lines = path.read_text("utf-8").splitlines()
        if len(lines) > MAX_FILE_LINES:
            long.append(f"{path.name}: {len(lines)} lines")
        long += [
            f"{path.name}:{number}"
            for number, line in enumerate(lines, 1)
            if len(line) > MAX_COLUMNS
        ]
    assert files
    assert not long


def test_packages_are_typed_and_modules_have_docstrings() -> None:
    assert all((ROOT / layer / "py.typed").is_file() for layer in LAYERS)
    assert not [module for module, (_, tree) in sources().items() if not ast.get_docstring(tree)]
