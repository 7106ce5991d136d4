"""Size and shape of the source tree, as a Markdown table: the working tree next to commits.

    python -m benchmarks.structure [--commit REV ...] [--root DIR]

Definitions:
    product          the Python files of search_spaces/, workers/ and orchestrator/; tests: those of tests/
    function length  from `def` to the last line, decorators excluded, nested functions counted in and on their own
    parameters       all kinds, without `self` and `cls`; CLI commands are the functions of modules that import typer
    duplicated lines lines within a run of at least 6 lines that stands elsewhere already, blank lines, comments and
                     imports removed and indentation ignored
    names            functions, classes and variables at the top level of product modules; private: first letter `_`
    scripts          the report's own JavaScript and CSS, without bundled libraries
    cycles           strongly connected components of the import graph with more than one member; lazy and typing-only
                     imports count. A package is a folder of the second level (workers.decoding with its subfolders).
"""

from __future__ import annotations

import argparse
import ast
import io
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PRODUCT = ("search_spaces", "workers", "orchestrator", "specfrontier")
TESTS = ("tests",)
DUPLICATE_RUN = 6  # lines
MANY_PARAMETERS, MAX_PARAMETERS = 7, 10

Graph = Mapping[str, set[str]]
AnyFunction = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Module:
    """A source file. name: dotted; is_package: it is an `__init__.py`."""

    name: str
    is_package: bool
    source: str
    tree: ast.Module

    @property
    def package(self) -> str:
        return self.name if self.is_package else self.name.rpartition(".")[0]

    @property
    def lines(self) -> list[str]:
        return self.source.splitlines()

    @property
    def functions(self) -> list[AnyFunction]:
        return [node for node in ast.walk(self.tree) if isinstance(node, AnyFunction)]


def read_modules(root: Path, folders: Iterable[str]) -> dict[str, Module]:
    """The modules below some folders of a tree, by dotted name."""
    modules = {}
    for path in sorted(path for folder in folders for path in (root / folder).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        source = path.read_text("utf-8")
        modules[name] = Module(name, is_package, source, ast.parse(source, str(path)))
    return modules


def import_graph(modules: Mapping[str, Module]) -> dict[str, set[str]]:
    """The modules that each module imports, anywhere in the file, of those given."""
    return {name: set(_imports(module, modules)) - {name} for name, module in modules.items()}


def _imports(module: Module, modules: Mapping[str, Module]) -> Iterator[str]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom):
            parents = module.package.split(".")
            anchor = parents[: len(parents) - node.level + 1] if node.level else []
            base = ".".join([*anchor, *([node.module] if node.module else [])])
            targets = (f"{base}.{alias.name}" for alias in node.names)
            yield from (name for target in targets if (name := target if target in modules else base) in modules)


def package_graph(graph: Graph) -> dict[str, set[str]]:
    """The same imports between packages of the second level; a module of the first level stands for itself."""
    packages: dict[str, set[str]] = {}
    for module, targets in graph.items():
        own = _package(module)
        packages.setdefault(own, set()).update({_package(target) for target in targets} - {own})
    return packages


def _package(module: str) -> str:
    return ".".join(module.split(".")[:2])


def find_cycles(graph: Graph) -> list[list[str]]:
    """Strongly connected components with more than one member, each sorted (Tarjan 1972)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    cycles: list[list[str]] = []

    def visit(node: str) -> None:
        order[node] = lowest[node] = len(order)
        stack.append(node)
        for neighbour in sorted(graph.get(node, ())):
            if neighbour not in order:
                visit(neighbour)
                lowest[node] = min(lowest[node], lowest[neighbour])
            elif neighbour in stack:
                lowest[node] = min(lowest[node], order[neighbour])
        if lowest[node] == order[node]:
            start = stack.index(node)
            if len(stack) - start > 1:
                cycles.append(sorted(stack[start:]))
            del stack[start:]

    for node in sorted(graph):
        if node not in order:
            visit(node)
    return sorted(cycles)


def function_lines(function: AnyFunction) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def parameter_count(function: AnyFunction) -> int:
    arguments = function.args
    named = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    variadic = [argument for argument in (arguments.vararg, arguments.kwarg) if argument is not None]
    return len(named) + len(variadic) - (bool(named) and named[0] in ("self", "cls"))


def duplicated_lines(modules: Iterable[Module]) -> int:
    """Lines of second and later copies; see the definitions above."""
    seen: set[tuple[str, ...]] = set()
    count = 0
    for module in modules:
        lines = _normalised(module)
        windows = [tuple(lines[start : start + DUPLICATE_RUN]) for start in range(len(lines) - DUPLICATE_RUN + 1)]
        copied: set[int] = set()
        for start, window in enumerate(windows):
            if window in seen:
                copied.update(range(start, start + DUPLICATE_RUN))
            seen.add(window)
        count += len(copied)
    return count


def _normalised(module: Module) -> list[str]:
    imports = [node for node in ast.walk(module.tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    skipped = {line for node in imports for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    numbered = enumerate((line.strip() for line in module.lines), start=1)
    return [line for number, line in numbered if line and not line.startswith("#") and number not in skipped]


def top_level_names(module: Module) -> set[str]:
    """Names that a module defines itself, dunder names excluded."""
    names: set[str] = set()
    for node in module.tree.body:
        if isinstance(node, ast.ClassDef | AnyFunction):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names.update(n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name))
    return {name for name in names if not name.startswith("__")}


def package_lines(modules: Mapping[str, Module]) -> dict[str, list[int]]:
    """The lines of the files of each package of the second level, its subfolders included."""
    packages: dict[str, list[int]] = {}
    for module in modules.values():
        packages.setdefault(_package(module.package), []).append(len(module.lines))
    return packages


def own_scripts(root: Path) -> list[Path]:
    """The report's own scripts and style sheets; bundled libraries are in a folder `vendor`."""
    files = sorted((root / "orchestrator" / "report").rglob("*"))
    return [path for path in files if path.suffix in (".js", ".css") and "vendor" not in path.parts]


def percentile(values: Sequence[int], percent: int) -> int:
    """The smallest value that at least `percent` % of the values do not exceed; 0 without values."""
    return sorted(values)[max(0, -(-len(values) * percent // 100) - 1)] if values else 0


def measure(root: Path) -> dict[str, str]:
    """The table's rows for one tree: label to value."""
    product, rows = read_modules(root, PRODUCT), {}
    for label, modules in (("product", product), ("tests", read_modules(root, TESTS))):
        files = [len(module.lines) for module in modules.values()]
        functions = [function_lines(f) for module in modules.values() for f in module.functions]
        copies = duplicated_lines(modules.values())
        rows[f"{label}: files"] = f"{len(files):,}"
        rows[f"{label}: lines"] = f"{sum(files):,}"
        rows[f"{label}: lines of a file, 50 % / 90 % / max"] = _spread(files)
        rows[f"{label}: lines of a function, 50 % / 90 % / max"] = _spread(functions)
        rows[f"{label}: duplicated lines"] = f"{copies:,} ({100 * copies / max(1, sum(files)):.2f} %)"
    counts = [(parameter_count(f), "import typer" in m.source) for m in product.values() for f in m.functions]
    rows[f"functions with more than {MANY_PARAMETERS} parameters"] = str(sum(n > MANY_PARAMETERS for n, _ in counts))
    label = f"functions with more than {MAX_PARAMETERS} parameters, CLI commands excepted"
    rows[label] = str(sum(n > MAX_PARAMETERS and not is_command for n, is_command in counts))
    for package, lines in sorted(package_lines(product).items()):
        rows[f"{package}: files / lines"] = f"{len(lines)} / {sum(lines):,}"
    scripts = [path.read_text("utf-8").count("\n") for path in own_scripts(root)]
    rows["scripts and style sheets of the report: files / lines"] = f"{len(scripts)} / {sum(scripts):,}"
    names = [name for module in product.values() for name in top_level_names(module)]
    private = sum(name.startswith("_") for name in names)
    rows["top-level names, public / private"] = f"{len(names) - private:,} / {private:,}"
    graph = import_graph(product)
    rows["module cycles"] = _describe_cycles(find_cycles(graph))
    rows["package cycles"] = _describe_cycles(find_cycles(package_graph(graph)))
    return rows


def _spread(values: Sequence[int]) -> str:
    return f"{percentile(values, 50)} / {percentile(values, 90)} / {max(values, default=0)}"


def _describe_cycles(cycles: Sequence[Sequence[str]]) -> str:
    return f"{len(cycles)}" + (": " + "; ".join(", ".join(cycle) for cycle in cycles) if cycles else "")


def measure_commit(root: Path, commit: str) -> dict[str, str]:
    """The rows of a commit of the repository at `root`.

    Raises:
        subprocess.CalledProcessError: the commit does not exist.
    """
    command = ["git", "-C", str(root), "archive", commit]
    archive = subprocess.run(command, check=True, capture_output=True).stdout
    with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")
        return measure(Path(folder))


def markdown_table(columns: Mapping[str, Mapping[str, str]]) -> str:
    """One row a measure, one column a tree."""
    labels = list(dict.fromkeys(label for column in columns.values() for label in column))
    lines = [["", *columns], ["---"] * (len(columns) + 1)]
    lines += [[label, *(column.get(label, "-") for column in columns.values())] for label in labels]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commit", action="append", default=[], help="a commit to show before the working tree")
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1], help="the repository")
    arguments = parser.parse_args()
    columns = {commit: measure_commit(arguments.root, commit) for commit in arguments.commit}
    print(markdown_table(columns | {"working tree": measure(arguments.root)}))


if __name__ == "__main__":
    main()
