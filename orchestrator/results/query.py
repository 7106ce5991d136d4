"""Queries on tables of trials: filters such as `tree.depth>=4`, and constraints such as `fid<=vanilla+0.5`.

A filter compares a column with given values. A constraint compares a metric with a number or with vanilla's value of
it. A `QueryError` names the expression and, for an unknown name, the nearest and all known names.
"""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from orchestrator.results.pareto import Bools, Floats
from orchestrator.results.trials import COMPLETE
from search_spaces.constraints import Constraint
from search_spaces.overrides import config_keys
from search_spaces.params import ConfigError

if TYPE_CHECKING:
    import pyarrow

_ORDER: Mapping[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_NULL = "null"  # in an expression: the row has no value in the column
_FILTER = re.compile(r"\s*([^\s=!<>]+)\s*(<=|>=|==|!=|=|<|>|(?<=\s)in\s|(?<=\s)not\s+in\s)\s*(.*?)\s*")


class QueryError(ValueError):
    """An expression that cannot be read, or that names something unknown."""


@dataclass(frozen=True, slots=True)
class Query:
    """Metrics of a front (None: the sweep's own objectives), filters and constraints on its candidates.

    feasible: only trials within the constraints that the sweep was launched with.
    """

    x: str | None = None
    y: str | None = None
    z: str | None = None
    where: tuple[str, ...] = ()
    subject_to: tuple[str, ...] = ()
    feasible: bool = True

    def tests(self, table: pyarrow.Table, excess: Callable[[pyarrow.Table, str], Floats]) -> dict[str, Bools]:
        """Which rows of a table of trials pass each test of a candidate, by the reason to leave out those that fail."""
        tests = {
            "by --where": passing(table, self.where),
            "failed": np.array([state == COMPLETE for state in table["state"].to_pylist()], dtype=np.bool_),
            "repeated": np.array([number is None for number in table["duplicate_of"].to_pylist()], dtype=np.bool_),
        }
        if self.feasible:
            tests["outside the constraints"] = np.array(table["feasible"].to_pylist(), dtype=np.bool_)
        if self.subject_to:
            tests["outside --subject-to"] = np.all([excess(table, text) <= 0 for text in self.subject_to], axis=0)
        return tests


@dataclass(frozen=True, slots=True)
class Filter:
    """`column` compared with `values` by `relation`: =, !=, <, <=, >, >= with one value, `in` and `not in` with any.

    A row without a value in the column passes only `!=` and `not in`; the value `null` means no value.
    """

    text: str
    column: str
    relation: str
    values: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Filter:
        """Read `column relation value`. Commas separate the values of `in`; quotes around a value are dropped.

        Raises:
            QueryError: the text has another form.
        """
        match = _FILTER.fullmatch(text)
        if match is None:
            raise QueryError(
                f"filter {text!r}: write COLUMN=VALUE, with =, !=, <, <=, >, >= or in, such as tree.depth>=4 or "
                "'acceptance.k in 10,100'"
            )
        column, sign, rest = match.groups()
        relation = {"==": "="}.get(sign, " ".join(sign.split()))
        values = [part.strip() for part in rest.split(",")] if relation.endswith("in") else [rest]
        return cls(text, column, relation, tuple(_unquote(value) for value in values))

    def mask(self, table: pyarrow.Table) -> Bools:
        """Which rows pass: bool [rows].

        Raises:
            QueryError: an unknown column, or a value or relation that does not suit its type.
        """
        import pyarrow as pa

        if self.column not in table.column_names:
            if self.column not in config_keys():
                raise QueryError(f"filter {self.text!r}: {unknown('column', self.column, table.column_names)}")
            return self._compare([None] * table.num_rows, str)  # a key that no config here has
        column, kind = table[self.column].to_pylist(), table.schema.field(self.column).type
        if pa.types.is_boolean(kind):
            return self._compare(column, self._bool)
        is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
        if not is_number and self.relation in _ORDER and not pa.types.is_null(kind):
            raise QueryError(f"filter {self.text!r}: {self.column} holds text, which has no order; use =, != or in")
        return self._compare(column, self._number if is_number else str)

    def _compare(self, column: Sequence[Any], parse: Callable[[str], Any]) -> Bools:
        values = [None if value == _NULL else parse(value) for value in self.values]
        if self.relation in _ORDER:
            if values[0] is None:
                raise QueryError(f"filter {self.text!r}: {_NULL} has no order; use = or !=")
            compare = _ORDER[self.relation]
            return np.array([entry is not None and compare(entry, values[0]) for entry in column], dtype=np.bool_)
        within = np.array([entry in values for entry in column], dtype=np.bool_)
        return ~within if self.relation in ("!=", "not in") else within

    def _number(self, value: str) -> float:
        try:
            return float(value)
        except ValueError:
            raise QueryError(f"filter {self.text!r}: {self.column} holds numbers, got {value!r}") from None

    def _bool(self, value: str) -> bool:
        if value.lower() not in ("true", "false"):
            raise QueryError(f"filter {self.text!r}: {self.column} is true or false, got {value!r}")
        return value.lower() == "true"


def passing(table: pyarrow.Table, where: Iterable[str]) -> Bools:
    """Which rows of the table pass all filters: bool [rows]."""
    mask = np.ones(table.num_rows, dtype=np.bool_)
    for text in where:
        mask &= Filter.parse(text).mask(table)
    return mask


def excess(text: str, table: pyarrow.Table, metrics: Iterable[str], vanilla: Mapping[str, float]) -> Floats:
    """By how much each row exceeds a constraint, in the metric's unit: within at 0 or less, NaN if not measured.

    metrics: the known ones. vanilla: vanilla's values.

    Raises:
        QueryError: it cannot be read, names an unknown metric, or needs a value that vanilla lacks.
    """
    try:
        constraint = Constraint.parse(text)
    except ConfigError as error:
        raise QueryError(f"limit {text!r}: {error}") from error
    name = constraint.metric
    if name not in metrics:
        raise QueryError(f"limit {text!r}: {unknown('metric', name, metrics)}")
    if constraint.relative_to_vanilla and name not in vanilla:
        raise QueryError(f"limit {text!r}: this sweep has not measured vanilla's {name}; give a number instead")
    column = table[name].to_pylist() if name in table.column_names else [None] * table.num_rows
    values = [np.nan if value is None else constraint.violation(value, vanilla.get(name)) for value in column]
    return np.array(values, dtype=np.float64)


def unknown(noun: str, name: str, known: Iterable[str]) -> str:
    """The message for an unknown name: the nearest one, and all that are known."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"there is no {noun} {name!r}; {hint}known: {', '.join(known) or 'none'}"


def _unquote(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value
