"""Queries on tables of trials: filters such as `tree.depth>=4`, and constraints such as
`fid<=vanilla+0.5`.

A filter compares a column with given values. A constraint compares a metric with a number or with
vanilla's value of it. A `QueryError` names the expression and, for an unknown name, the nearest and
all known names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from orchestrator.errors import QueryError
from orchestrator.front.joint import JointErrors
from orchestrator.front.pareto import Bools, Floats
from orchestrator.store.records import TrialRecord, typed_table
from search_spaces.constraints import RELATIVE_BOUND, Constraint
from search_spaces.params import ConfigError, unknown_key
from search_spaces.trial import flat_types
from workers.metrics.definition import Metric
from workers.metrics.estimate import Estimate

if TYPE_CHECKING:
    import pyarrow

# functions of pyarrow.compute
_ORDER = {"<=": "less_equal", ">=": "greater_equal", "<": "less", ">": "greater"}
_MAX_LISTED = 10  # values of a column
_NULL = "null"  # in an expression: the row has no value in the column
_OUTSIDE_QUOTES = r"""(?=(?:[^'"]|'[^']*'|"[^"]*")*$)"""
# `and` or `or` between two conditions, but not in a value such as `red and blue`. {}: the word, and
# the true/false columns
_BETWEEN = (
    r"\s+{}\s+(?=[^\s=!<>]+\s*(?:[=!<>]|in\s|not\s)|(?:not\s+)?(?:{})(?:\s+(?:and|or)\s|\s*$))"
    + _OUTSIDE_QUOTES
)
# columns by the headings that tables have for them, if that is not their name
_HEADINGS = {"#": "number", "trial": "number", "time": "seconds"}
_FLAG = re.compile(r"\s*(not\s+)?(\S+)\s*")
_FILTER = re.compile(r"\s*([^\s=!<>]+)\s*(<=|>=|==|!=|=|<|>|(?<=\s)(?:not\s+)?in(?!\S))\s*(.*?)\s*")
_UNFINISHED = re.compile(r".*?((?<!\S)(?:and|or)|[-+*])")  # the end of a value


def passing(table: pyarrow.Table, where: Iterable[str]) -> Bools:
    """Find the rows of the table that pass all filters: bool [rows].

    A filter is `COLUMN RELATION VALUE` with =, ==, !=, <, <=, > or >=, or `in` and `not in` with
    values between commas; quotes around a value are dropped. `and` joins several, and `or`
    separates alternatives, each with its own `and`. The name of a true/false column alone is a
    filter, too, such as `lossless` or `not lossless`. A column may be given by its heading (see
    `headings`). A row without a value in the column passes only `!=` and `not in`; the value `null`
    means no value.

    Raises:
        QueryError: a filter has another form, names an unknown column, or its value or relation
            does not suit the column's type.
    """
    mask = np.ones(table.num_rows, dtype=np.bool_)
    for alternatives in _parsed(table, where):
        mask &= _passing_any(table, alternatives)
    return mask


def headings(columns: Iterable[str]) -> dict[str, str]:
    """Columns by the headings that tables show for them: `mean accepted length`, `time`."""
    names = list(columns)
    found = {name.replace("_", " "): name for name in names if "_" in name}
    absent = {heading: name for heading, name in _HEADINGS.items() if heading not in names}
    return found | {heading: name for heading, name in absent.items() if name in names}


def _heading_pattern(names: Iterable[str]) -> str:
    """A heading where a condition begins with it, as a regular expression of Python and of
    JavaScript.
    """
    longest_first = sorted(names, key=len, reverse=True)
    return (
        rf"(?<!\S)(?:{'|'.join(map(re.escape, longest_first))})"
        rf"(?=\s*[=!<>≤≥]|\s+(?:not\s+)?in(?!\S)){_OUTSIDE_QUOTES}"
    )


def require_list(texts: Iterable[str], name: str) -> None:
    """Raise QueryError if a single text was given for a list, whose letters would be read one by
    one.
    """
    if isinstance(texts, str):
        raise QueryError(f"{name}: give a list, such as {name}=[{texts!r}]")


def _parsed(table: pyarrow.Table, where: Iterable[str]) -> list[list[list[str]]]:
    """The alternatives of each filter, and the conditions of each of these; none for an empty
    table, which lacks columns.
    """
    require_list(where, "where")
    if not table.num_rows:
        return []
    flags = "|".join(map(re.escape, _flags(table)))
    either = re.compile(_BETWEEN.format("or", flags))
    both = re.compile(_BETWEEN.format("and", flags))
    named = headings(table.column_names)
    heading = re.compile(_heading_pattern(named)) if named else None
    found = []
    for text in where:
        plain = text
        if heading is not None:
            plain = heading.sub(lambda match: named[match[0]], text)
        found.append([both.split(part) for part in either.split(plain)])
    return found


def _passing_any(table: pyarrow.Table, alternatives: Sequence[Sequence[str]]) -> Bools:
    """Which rows pass all conditions of one of the alternatives."""
    found = np.zeros(table.num_rows, dtype=np.bool_)
    for conditions in alternatives:
        passed = np.ones(table.num_rows, dtype=np.bool_)
        for text in conditions:
            passed &= _passing_one(table, text)[1]
        found |= passed
    return found


def _flags(table: pyarrow.Table) -> list[str]:
    """The true/false columns."""
    import pyarrow as pa

    return [field.name for field in table.schema if pa.types.is_boolean(field.type)]


def unmatched(table: pyarrow.Table, where: Iterable[str]) -> list[str]:
    """A sentence for each condition of a filter that no row passes, if no row passes the condition
    alone: which values its column has.
    """
    notes = []
    for alternatives in _parsed(table, where):
        if _passing_any(table, alternatives).any():
            continue
        for text in chain.from_iterable(alternatives):
            name, passed = _passing_one(table, text)
            if not passed.any():
                notes.append(
                    f"no trial passes {text}: {name} {_describe_values(column_of(table, name))}"
                )
    return notes


def _passing_one(table: pyarrow.Table, text: str) -> tuple[str, Bools]:
    """A filter's column, and which rows pass it. Raises QueryError (see `passing`)."""
    flag = _FLAG.fullmatch(text)
    match = _FILTER.fullmatch(text)
    if flag is not None and flag[2] in _flags(table):
        name = flag[2]
        sign = "="
        rest = "false" if flag[1] else "true"
    elif match is not None:
        name, sign, rest = match.groups()
    else:
        raise QueryError(
            f"filter {text!r}: write COLUMN=VALUE, with =, !=, <, <=, >, >= or in, such as "
            "tree.depth>=4 or 'acceptance.k in 10,100'; only true/false columns stand alone: "
            f"{', '.join(_flags(table))}"
        )
    relation = " ".join(sign.split())
    values = [rest]
    if relation.endswith("in"):
        values = [part.strip() for part in rest.split(",")]
    try:
        column = column_of(table, name)
        _check_finished(column, sign, values)
        return name, _compare(column, relation, [_unquote(value) for value in values])
    except ValueError as error:
        raise QueryError(f"filter {text!r}: {name}{error}") from None


def script_patterns(flags: Iterable[str], columns: Iterable[str]) -> dict[str, str]:
    """The grammar of filters and limits as regular expressions of JavaScript, for the report's
    script.

    A query there also has words, and conditions without `and` between them, so a value with spaces
    needs quotes. flags: the true/false columns.

    Returns:
        word: a word, flag or condition in named groups; values may be missing. bound: of a limit
            relative to vanilla. heading: one of `headings`, which the column's name replaces.
    """
    key = r"[^\s=!<>≤≥]+"
    quoted = r"""(?:"[^"]*"|'[^']*')"""
    not_and = r"(?!(?:and|or)(?!\S))"
    bound = re.sub(r"\(\?P<\w+>", "(?:", RELATIVE_BOUND)
    entry = rf"(?:{quoted}|[^\s,]+)?"
    flag = rf"(?<flag>{'|'.join(map(re.escape, flags))})(?!\S)"
    flag += r"(?!\s*[=!<>≤≥])(?!\s+(?:not\s+)?in(?!\S))"
    entries = rf"{not_and}(?:{entry}\s*,\s*{not_and})*{entry}"
    value = rf"{quoted}|{bound}(?!\S)|{not_and}[^\s=<>≤≥]\S*"
    parts = (
        rf"(?<!\S)(?<without>not\s+)?{flag}",
        rf"(?<listed>{key})\s+(?<not>not\s+)?in(?!\S)(?:\s+(?<values>{entries}))?",
        rf"(?<name>{key})\s*(?<relation><=|>=|==|!=|=|<|>|≤|≥)(?![=<>≤≥])(?:\s*(?<value>{value}))?",
        r"(?<word>\S+)",
    )
    return {
        "word": "|".join(parts),
        "bound": RELATIVE_BOUND.replace("(?P<", "(?<"),
        "heading": _heading_pattern(headings(columns)),
    }


def _describe_values(column: pyarrow.ChunkedArray) -> str:
    """`is chain, dynamic or static`; of more than ten numbers: `is from 2 to 60`."""
    values = sorted(set(column.drop_null().to_pylist()))
    if not values:
        return "has no value in any trial"
    if len(values) > _MAX_LISTED:
        if not isinstance(values[0], str):
            return f"is from {values[0]:.4g} to {values[-1]:.4g}"
        return f"is {', '.join(values[:_MAX_LISTED])}, ..."
    *others, last = map(str, values)
    return f"is {', '.join(others)} or {last}" if others else f"is {last}"


def column_of(table: pyarrow.Table, name: str) -> pyarrow.ChunkedArray:
    """A column, or only nulls for a key of configs that no config here has.

    Raises:
        ValueError: there is no such column; the message follows the column's name.
    """
    if name in table.column_names:
        return table[name]
    if name in (types := flat_types()):
        return typed_table([{}] * table.num_rows, {name: types[name]})[name]
    raise ValueError(f": {unknown_key(name, table.column_names, 'column')}")


def _check_finished(column: pyarrow.ChunkedArray, sign: str, values: Sequence[str]) -> None:
    """Raise ValueError if a filter ends too early. The empty text is a value, but in a list only
    within quotes.
    """
    import pyarrow as pa

    is_text = pa.types.is_string(column.type)
    is_bool = pa.types.is_boolean(column.type)
    expected = "a value" if is_text else "a number"
    if is_bool:
        expected = "true or false"
    if "" in values and not (is_text and sign in ("=", "==", "!=")):
        raise ValueError(f": {expected} is missing after {sign}")
    for value in values:
        if value[:1] in ("'", '"') and (len(value) == 1 or value[-1] != value[0]):
            raise ValueError(f": the closing {value[0]} of {value} is missing")
        if (found := _UNFINISHED.fullmatch(value)) and (not is_text or found[1].isalpha()):
            raise ValueError(
                f": the filter ends with {found[1]}; write what follows it, or leave it out"
            )


def _compare(column: pyarrow.ChunkedArray, relation: str, values: list[str]) -> Bools:
    """Find the entries that stand in a relation to the values: bool [rows]. ValueError: the values
    do not suit it.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    is_bool = pa.types.is_boolean(column.type)
    is_number = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
    if relation in _ORDER and not (is_number or is_bool):
        raise ValueError(" holds text, which has no order; use =, != or in")
    if relation in _ORDER and values == [_NULL]:
        raise ValueError(f": {_NULL} has no order; use = or !=")
    if is_bool:
        known = [value for value in values if value != _NULL]
        if wrong := [value for value in known if value.lower() not in ("true", "false")]:
            raise ValueError(f" holds true or false, got {', '.join(wrong)!r}")
    kind = pa.float64() if is_number else pa.string()
    if is_bool:
        kind = pa.bool_()
    try:
        texts = [None if value == _NULL else value for value in values]
        given = pa.array(texts, pa.string()).cast(kind)
    except pa.ArrowInvalid:
        problem = f" holds numbers, got {', '.join(values)!r}"
        if any("vanilla" in value for value in values):
            problem += "; --subject-to takes limits relative to vanilla"
        raise ValueError(problem) from None
    column = column.cast(kind)
    found: Any
    if relation in _ORDER:
        found = pc.fill_null(getattr(pc, _ORDER[relation])(column, given[0]), False)
    else:
        found = pc.is_in(column, value_set=given)  # finds null too
    mask: Bools = found.to_numpy().astype(np.bool_)
    return ~mask if relation in ("!=", "not in") else mask


def parse_limit(
    text: str, metrics: Iterable[str], vanilla: Mapping[str, Estimate]
) -> Callable[[TrialRecord], bool]:
    """A function that tells whether a trial meets a constraint; a trial without the metric does
    not.

    metrics: the known ones. vanilla: vanilla's results.

    Raises:
        QueryError: it cannot be read, names an unknown metric, needs a value that vanilla lacks, or
            multiplies a value that is 0.
    """
    try:
        constraint = Constraint.parse(text)
        if constraint.metric in vanilla:
            constraint.check_vanilla(vanilla[constraint.metric].value)
    except ConfigError as error:
        raise QueryError(f"limit {text!r}: {error}") from error
    name = constraint.metric
    if name not in metrics:
        raise QueryError(f"limit {text!r}: {unknown_key(name, metrics, 'metric')}")
    if constraint.relative_to_vanilla and name not in vanilla:
        raise QueryError(
            f"limit {text!r}: this sweep has not measured vanilla's {name}; give a number instead"
        )
    baseline = vanilla[name].value if name in vanilla else None
    return lambda record: (
        name in record.metrics and constraint.violation(record.metrics[name].value, baseline) <= 0
    )


def limit_confidence(
    record: TrialRecord,
    vanilla: TrialRecord | None,
    limits: Sequence[str],
    metrics: Mapping[str, Metric],
) -> float | None:
    """The share of draws from its errors, and vanilla's, in which a trial meets all limits; None if
    an error is unknown. metrics: by name.

    Optimistic for the best of many trials near a limit, because luck helped to choose it.
    """
    constraints = [Constraint.parse(text) for text in limits]
    for constraint in constraints:
        entries = [record.metrics[constraint.metric]]
        if constraint.relative_to_vanilla and vanilla is not None:
            entries.append(vanilla.metrics[constraint.metric])
        if any(entry.known_error is None for entry in entries):
            return None
    own, base = limit_samples(
        record, vanilla, [metrics[constraint.metric] for constraint in constraints]
    )
    met = np.ones(len(own), dtype=np.bool_)
    for constraint, values, references in zip(constraints, own.T, base.T, strict=True):
        excess = values - (constraint.factor * references + constraint.offset)
        met &= (excess if constraint.op == "<=" else -excess) <= 0  # NaN is not met
    return float(met.mean())


def limit_samples(
    record: TrialRecord, vanilla: TrialRecord | None, metrics: Sequence[Metric]
) -> tuple[Floats, Floats]:
    """Samples [samples, m] of a trial's values in m metrics, and of vanilla's; without vanilla, the
    trial's twice.
    """
    records = [record]
    if vanilla is not None and vanilla is not record:
        records.append(vanilla)
    samples = JointErrors.of(records, metrics).samples()
    return samples[:, 0], samples[:, -1]


def _unquote(value: str) -> str:
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1]
    return value


def limit_notes(metrics: Sequence[Metric], limits: Sequence[str]) -> list[str]:
    """A hint if every limit is on the first of a front's metrics, which is optimised already, so
    that nothing limits the others.
    """
    first, second = (metric.name for metric in metrics[:2])
    if not limits or any(Constraint.parse(text).metric != first for text in limits):
        return []
    return [
        f"the limit is on {first} alone, whatever {second}; for the best {second} within "
        f"{limits[0]} make it the first objective: --x {second}, in Python x={second!r}"
    ]
