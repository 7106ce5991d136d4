"""Size and shape of the source tree, as a Markdown table: the working tree next to commits.

    python -m benchmarks.structure [--commit REV ...] [--root DIR]
    python -m benchmarks.structure --budgets       # the figures that tests/budgets.yaml limits

Definitions: product          the Python files of search_spaces/, workers/ and orchestrator/; tests:
    those of tests/ function length  from `def` to the last line, decorators excluded, nested
    functions counted in and on their own parameters       all kinds, without `self` and `cls`; CLI
    commands are the functions of modules that import typer duplicated lines lines within a run of
    at least 6 lines that stands elsewhere already, blank lines, comments and imports removed and
    indentation ignored tokens           names, operators and literals of product modules: neither
    comments nor docstrings names            functions, classes and variables at the top level of
    product modules; private: first letter `_` crossing names   what a package's modules define and
    modules of other packages import; a module imported as a whole is one name. A package is a
    folder of the second level, or the modules of a first-level folder pairs            assignments
    of several values to as many targets in one statement, as in `a, b = x, y` conditionals
    conditional expressions; nested: with another one as an operand comprehensions   with
    generators; long: more than two clauses, `for` and `if` counted scripts          the report's
    own JavaScript and CSS, without bundled libraries cycles           strongly connected components
    of the import graph with more than one member; lazy and typing-only imports count. A package is
    a folder of the second level (workers.decoding with its subfolders).
"""

from __future__ import annotations

import argparse
import ast
import io
import subprocess
import tarfile
import tempfile
import tokenize
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

CODE = (tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING)
PRODUCT = ("search_spaces", "workers", "orchestrator", "specfrontier")
TESTS = ("tests",)
DUPLICATE_RUN = 6  # lines
MANY_PARAMETERS, MAX_PARAMETERS = 7, 10
MAX_CLAUSES = 2  # of a comprehension that is still read at once

Graph = Mapping[str, set[str]]
AnyFunction = ast.FunctionDef | ast.AsyncFunctionDef
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


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
            yield from (
                name
                for target in targets
                if (name := target if target in modules else base) in modules
            )


def package_graph(graph: Graph) -> dict[str, set[str]]:
    """The same imports between packages of the second level; a module of the first level stands for
    itself.
    """
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
    named = [
        argument.arg
        for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    ]
    variadic = [
        argument for argument in (arguments.vararg, arguments.kwarg) if argument is not None
    ]
    return len(named) + len(variadic) - (bool(named) and named[0] in ("self", "cls"))


def duplicated_lines(modules: Iterable[Module]) -> int:
    """Lines of second and later copies; see the definitions above."""
    seen: set[tuple[str, ...]] = set()
    count = 0
    for module in modules:
        lines = _normalised(module)
        windows = [
            tuple(lines[start : start + DUPLICATE_RUN])
            for start in range(len(lines) - DUPLICATE_RUN + 1)
        ]
        copied: set[int] = set()
        for start, window in enumerate(windows):
            if window in seen:
                copied.update(range(start, start + DUPLICATE_RUN))
            seen.add(window)
        count += len(copied)
    return count


def _normalised(module: Module) -> list[str]:
    imports = [
        node for node in ast.walk(module.tree) if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    skipped = {
        line
        for node in imports
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    numbered = enumerate((line.strip() for line in module.lines), start=1)
    return [
        line
        for number, line in numbered
        if line and not line.startswith("#") and number not in skipped
    ]


def top_level_names(module: Module) -> set[str]:
    """Names that a module defines itself, dunder names excluded."""
    names: set[str] = set()
    for node in module.tree.body:
        if isinstance(node, ast.ClassDef | AnyFunction):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names.update(
                n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)
            )
    return {name for name in names if not name.startswith("__")}


def count_tokens(module: Module) -> int:
    """Tokens of code."""
    tokens = sum(
        token.type in CODE
        for token in tokenize.generate_tokens(io.StringIO(module.source).readline)
    )
    return tokens - sum(_is_text(node) for node in ast.walk(module.tree))


def _is_text(node: ast.AST) -> bool:
    """Whether a statement is a string alone, as docstrings are."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def public_definitions(module: Module) -> set[str]:
    """The public functions and classes at a module's top level."""
    definitions = (
        node for node in module.tree.body if isinstance(node, ast.ClassDef | AnyFunction)
    )
    return {node.name for node in definitions if not node.name.startswith("_")}


def crossing_names(modules: Mapping[str, Module]) -> dict[str, set[tuple[str, str]]]:
    """The names that each package gives to modules of other packages: (module, name), without name
    for a module.
    """
    given: dict[str, set[tuple[str, str]]] = {}
    for module in modules.values():
        for node in ast.walk(module.tree):
            if not isinstance(node, ast.ImportFrom) or node.level or node.module is None:
                continue
            for alias in node.names:
                found = _definition(f"{node.module}.{alias.name}", modules)
                if found is None:
                    continue
                giver = _home(modules[found[0]])
                if giver != _home(module):
                    given.setdefault(giver, set()).add(found)
    return given


def _definition(dotted: str, modules: Mapping[str, Module]) -> tuple[str, str] | None:
    """The module and the name that a dotted path stands for; the name is empty if it is a module
    itself.
    """
    if dotted in modules:
        return dotted, ""
    module, _, name = dotted.rpartition(".")
    return (module, name) if module in modules else None


def _home(module: Module) -> str:
    """The package that a module belongs to: a folder of the first or second level."""
    return _package(module.package)


@dataclass(frozen=True, slots=True)
class Budget:
    """What somebody who reads a package has to hold. See `tokens`, `names` and `crossing names`
    above.
    """

    tokens: int
    public: int
    crossing: int


def budgets(modules: Mapping[str, Module]) -> dict[str, Budget]:
    """The figures of each package."""
    given = crossing_names(modules)
    packages: dict[str, list[Module]] = {}
    for module in modules.values():
        packages.setdefault(_home(module), []).append(module)
    return {
        package: Budget(
            tokens=sum(count_tokens(module) for module in own),
            public=sum(len(public_definitions(module)) for module in own),
            crossing=len(given.get(package, ())),
        )
        for package, own in sorted(packages.items())
    }


def packed_statements(modules: Iterable[Module]) -> dict[str, int]:
    """How often statements and expressions say several things at once, by kind; see the definitions
    above.
    """
    nodes = [node for module in modules for node in ast.walk(module.tree)]
    conditionals = [node for node in nodes if isinstance(node, ast.IfExp)]
    comprehensions = [node for node in nodes if isinstance(node, Comprehension)]
    return {
        "pairs": sum(_is_pair(node) for node in nodes),
        "conditionals": len(conditionals),
        "nested conditionals": sum(_is_nested(node) for node in conditionals),
        "comprehensions": len(comprehensions),
        "long comprehensions": sum(_clauses(node) > MAX_CLAUSES for node in comprehensions),
    }


def _is_pair(node: ast.AST) -> bool:
    if not isinstance(node, ast.Assign):
        return False
    return isinstance(node.value, ast.Tuple) and any(
        isinstance(target, ast.Tuple) for target in node.targets
    )


def _is_nested(node: ast.IfExp) -> bool:
    return any(isinstance(operand, ast.IfExp) for operand in (node.test, node.body, node.orelse))


def _clauses(node: Comprehension) -> int:
    return sum(1 + len(generator.ifs) for generator in node.generators)


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
    """The smallest value that at least `percent` % of the values do not exceed; 0 without
    values.
    """
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
        rows[f"{label}: duplicated lines"] = (
            f"{copies:,} ({100 * copies / max(1, sum(files)):.2f} %)"
        )
    counts = [
        (parameter_count(f), "import typer" in m.source)
        for m in product.values()
        for f in m.functions
    ]
    rows[f"functions with more than {MANY_PARAMETERS} parameters"] = str(
        sum(n > MANY_PARAMETERS for n, _ in counts)
    )
    label = f"functions with more than {MAX_PARAMETERS} parameters, CLI commands excepted"
    rows[label] = str(sum(n > MAX_PARAMETERS and not is_command for n, is_command in counts))
    found = budgets(product)
    rows["tokens"] = f"{sum(budget.tokens for budget in found.values()):,}"
    rows["public functions and classes"] = f"{sum(budget.public for budget in found.values()):,}"
    rows["crossing names"] = f"{sum(budget.crossing for budget in found.values()):,}"
    thousands = sum(len(module.lines) for module in product.values()) / 1000
    for kind, count in packed_statements(product.values()).items():
        rows[f"{kind}: number / per 1,000 lines"] = f"{count:,} / {count / max(thousands, 1):.1f}"
    for package, lines in sorted(package_lines(product).items()):
        rows[f"{package}: files / lines"] = f"{len(lines)} / {sum(lines):,}"
        budget = found[package]
        rows[f"{package}: tokens / public / crossing"] = (
            f"{budget.tokens:,} / {budget.public} / {budget.crossing}"
        )
    scripts = [path.read_text("utf-8").count("\n") for path in own_scripts(root)]
    rows["scripts and style sheets of the report: files / lines"] = (
        f"{len(scripts)} / {sum(scripts):,}"
    )
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
    return f"{len(cycles)}" + (
        ": " + "; ".join(", ".join(cycle) for cycle in cycles) if cycles else ""
    )


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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--commit", action="append", default=[], help="a commit to show before the working tree"
    )
    parser.add_argument(
        "--root", type=Path, default=Path(__file__).parents[1], help="the repository"
    )
    parser.add_argument(
        "--budgets", action="store_true", help="print each package's figures as YAML instead"
    )
    arguments = parser.parse_args()
    if arguments.budgets:
        for package, budget in budgets(read_modules(arguments.root, PRODUCT)).items():
            figures = ", ".join(f"{name}: {figure}" for name, figure in asdict(budget).items())
            print(f"{package}: {{{figures}}}")
        return
    columns = {commit: measure_commit(arguments.root, commit) for commit in arguments.commit}
    print(markdown_table(columns | {"working tree": measure(arguments.root)}))


if __name__ == "__main__":
    main()
