"""The references, written from the code: commands, YAML keys, metrics, ready sweeps, the Python
API.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import typer
from typer.cli import get_docs_for_click

import specfrontier
from orchestrator.cli.app import app
from search_spaces.params import ParamField, Params, Range
from search_spaces.presets import ALIASES, CATALOGUE
from search_spaces.samplers import SAMPLERS, PoolOptions
from search_spaces.sections import Section
from search_spaces.sweep import KEYS, SWEEP_SECTIONS, SweepConfig, ready_spaces
from search_spaces.sweep_sections import Enqueued, Racing, SweepHeader
from search_spaces.trial import SECTIONS
from workers.loading.models_yaml import CommonKeys
from workers.metrics.metric import METRICS
from workers.metrics.networks import EXTRACTORS, SCORERS
from workers.models.families.catalogue import FAMILIES

# The keys of a sweep that are lists or decoding configs; their forms are in docs/sweeps.md.
OTHER_KEYS: Mapping[str, str] = {
    "metrics": "List of metrics to compute. Left out: all that the models allow.",
    "objectives": (
        "List of two or three metrics, each a name or `{metric: NAME, direction: maximize}`; "
        "direction left out: the metric's own. Left out: `[speedup, fid]`."
    ),
    "constraints": (
        "List of limits on metrics, such as `drift <= 2`, `clip_score >= 0.9 * vanilla` or "
        "`fid <= vanilla + 0.5`."
    ),
    "enqueue": (
        "List of configs to run first: names of presets, or mappings with the sections of a config "
        "and optionally `preset` and `label`."
    ),
    "sampling": (
        "The sampling of the baseline and of every config that has none of its own. Left out: the "
        "target's."
    ),
    "space": (
        "The search space: a config (below) whose values may be domains, and whose sections may be "
        "lists of branches."
    ),
}
_KINDS = {int: "whole number", float: "number", str: "text"}
_UNBOUNDED = 2**31  # a larger upper limit is a number's own
DOMAINS = """\
In `space`, a value of a config is

- a plain value: fixed;
- `{values: [a, b]}`: one of several;
- `{low: 1, high: 10}`: an interval, with `log: true` on a logarithmic scale,
  with `step: 2` in steps.

A section that is a list of mappings is a choice of branches, each with its own parameters.
"""


def pages() -> dict[str, str]:
    """Markdown by name."""
    makers: dict[str, Callable[[], str]] = {
        "commands": commands,
        "yaml": yaml_keys,
        "metrics": metrics,
        "spaces": spaces,
        "python": python,
    }
    return {name: make() for name, make in makers.items()}


def commands() -> str:
    """Every command with its options, by Typer's generator; examples become code."""
    command = typer.main.get_command(app)
    text = get_docs_for_click(
        obj=command, ctx=typer.Context(command), name="specfrontier", title="Commands"
    )
    text = re.sub(
        r"^\x08?\n?Examples:\n((?:  .*\n)+)", lambda found: _examples(found[1]), text, flags=re.M
    )
    return text.replace("\x08", "")


def _examples(lines: str) -> str:
    code = "\n".join(line.strip() for line in lines.splitlines())
    return f"**Examples**:\n\n```console\n{code}\n```\n"


def yaml_keys() -> str:
    """The keys of a sweep's file, of a config, and of models.yaml."""
    header = SweepHeader.fields()
    parts = ["# YAML keys", "## A sweep", _table([header[key] for key in KEYS if key in header])]
    for key in KEYS:
        if key in SWEEP_SECTIONS:
            parts += [f"### `{key}`", *_params(SWEEP_SECTIONS[key])]
        elif key == "racing":
            parts += [f"### `{key}`", *_params(Racing)]
        elif key not in header:
            parts += [f"### `{key}`", OTHER_KEYS[key]]
            if key == "enqueue":
                parts.append(_code(inspect.getdoc(Enqueued.read)))
            if key == "space":
                parts.append(DOMAINS)
    parts += [
        "### Samplers",
        "Of `search.sampler`, with the arguments that `search.options` overrides:",
    ]
    SAMPLERS.load()
    rows = [
        (f"`{name}`", ", ".join(f"`{k}: {v}`" for k, v in entry.defaults.items()))
        for name, entry in SAMPLERS.items()
    ]
    parts += [
        _rows(("sampler", "defaults"), rows),
        "Of samplers that choose from a pool (`replay`):",
    ]
    parts += [_table(PoolOptions.fields().values()), "## A config"]
    parts.append("As in `enqueue`, `space`, presets, `generate --config` and `--set`.")
    for name, section in SECTIONS.items():
        parts += [f"### `{name}` of a config", *_section(section)]
    parts += [
        "## An entry of models.yaml",
        "Keys of every entry; `drafters` and `metrics` map kinds to paths.",
    ]
    parts.append(_table(CommonKeys.fields().values()))
    for kind, family in FAMILIES.all().items():
        parts += [f"### family `{kind}`", *_params(family)]
        if family.published:
            parts.append(f"Published: {', '.join(f'`{name}`' for name in family.published)}.")
    return "\n\n".join(parts)


def _section(section: Section) -> list[str]:
    parts = []
    if section.rules:
        parts.append(
            "A name stands for a whole section: "
            f"{', '.join(f'`{name}`' for name in section.rules)}."
        )
    for tag, kinds in section.tags.items():
        if hasattr(kinds, "load"):
            kinds.load()
        for kind, params in kinds.items():
            parts += [f"#### `{tag}: {kind}`", *_params(params)]
    return [*parts, _table(section.common.values())] if section.common else parts


def metrics() -> str:
    """Every metric, and the networks that users give weights for."""
    rows = [
        (
            f"`{name}`",
            entry.direction,
            _escaped(entry.unit),
            _escaped(entry.about),
            ", ".join(f"`{n}`" for n in entry.needs),
        )
        for name, entry in METRICS.all().items()
    ]
    parts = ["# Metrics", "How they are measured, and their errors: [metrics](../metrics.md).",
             _rows(("metric", "better", "unit", "what it is", "needs"), rows), "## Weights",
             "Keys of `metrics` in an entry of models.yaml."]  # fmt: skip
    weights = [
        (f"`{key}`", entry.role, _escaped(entry.architecture))
        for key, entry in EXTRACTORS.all().items()
    ]
    parts.append(_rows(("extractor", "role", "network"), weights))
    scores = [
        (
            f"`{name}`",
            ", ".join(f"`{key}`" for key in entry.weight_keys),
            _escaped("; ".join(entry.weights.values())),
        )
        for name, entry in SCORERS.all().items()
    ]
    return "\n\n".join([*parts, _rows(("score of an image", "keys", "files"), scores)])


def spaces() -> str:
    """The ready sweeps and presets."""
    ready = [(f"`{name}`", _escaped(SweepConfig.read(name).about)) for name in ready_spaces()]
    presets = [
        (f"`{name}`", _escaped(entry.about), _escaped(entry.source))
        for name, entry in CATALOGUE.items()
    ]
    aliases = ", ".join(f"`{alias}` is `{name}`" for alias, name in ALIASES.items())
    parts = [
        "# Ready sweeps and presets",
        "## Sweeps",
        _rows(("sweep", "what it maps"), ready),
        "## Presets",
    ]
    return "\n\n".join([*parts, _rows(("preset", "what it is", "from"), presets), f"{aliases}."])


def python() -> str:
    """The public names of `specfrontier`, and the public methods of its classes."""
    parts = ["# Python", _code(specfrontier.__doc__)]
    for name in specfrontier.__all__:
        entry = getattr(specfrontier, name)
        parts.append(f"## `{name}`")
        if not callable(entry):
            parts.append(_code(repr(entry)))
            continue
        is_error = isinstance(entry, type) and issubclass(entry, Exception)
        signature = name if is_error else _signature(name, entry)
        parts += [_code(signature, "python"), _code(inspect.getdoc(entry))]
        if name in {"Sweep", "Trial", "ImageEngine"}:
            for method, member in inspect.getmembers(entry, callable):
                if not method.startswith("_") and inspect.getdoc(member):
                    signature = _signature(method, member)
                    parts += [
                        f"### `{name}.{method}`",
                        _code(signature, "python"),
                        _code(inspect.getdoc(member)),
                    ]
    return "\n\n".join(parts)


def _signature(name: str, entry: Callable[..., Any]) -> str:
    return f"{name}{inspect.signature(entry)}".replace("'", "")


def _params(params: type[Params]) -> list[str]:
    """A parameter class: its docstring, and its fields."""
    about = [
        _escaped(text.replace("\n", " ")) for text in (inspect.getdoc(params) or "").split("\n\n")
    ]
    return [*about, _table(params.fields().values())] if params.fields() else about


def _table(fields: Iterable[ParamField]) -> str:
    rows = [
        (f"`{field.key}`", _values(field), _default(field), _escaped(field.about))
        for field in fields
    ]
    return _rows(("key", "values", "default", "what it is"), rows)


def _values(field: ParamField) -> str:
    if field.choices:
        return ", ".join(f"`{choice}`" for choice in field.choices)
    kind = _kind(field.type)
    bounds = (
        field.range
        if (field.range.high or 0) < _UNBOUNDED
        else Range(field.range.low, None, field.range.open_low)
    )
    return f"{kind} {bounds}" if bounds else kind


def _kind(type_: Any, plural: str = "") -> str:
    """A field's type in words, such as `whole number or list of whole numbers`. plural: the ending
    of several.
    """
    origin, parts = get_origin(type_), [part for part in get_args(type_) if part is not type(None)]
    if origin in (Union, UnionType):
        return " or ".join(_kind(part, plural) for part in parts)
    if origin is Literal:
        return " or ".join(f"`{word}`" for word in parts)
    if origin is tuple:
        return f"list{plural} of {_kind(parts[0], 's')}"
    return ("mapping" if origin is Mapping else _KINDS[type_]) + plural


def _default(field: ParamField) -> str:
    if field.required:
        return "**required**"
    return "–" if field.default in (None, "", {}) else f"`{field.default}`"


def _rows(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines
    )


def _escaped(text: str) -> str:
    """Text outside backticks with Markdown's and HTML's own characters escaped."""
    parts = text.split("`")
    plain = [re.sub(r"([*_\[\]])", r"\\\1", part).replace("<", "&lt;") for part in parts[::2]]
    return "".join(
        f"{plain[i // 2]}" if i % 2 == 0 else f"`{part}`" for i, part in enumerate(parts)
    )


def _code(text: str | None, language: str = "text") -> str:
    return f"```{language}\n{(text or '').strip()}\n```"
