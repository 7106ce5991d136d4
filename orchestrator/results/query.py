"""What is asked of a table of trials: filters such as `tree.depth>=4`, and constraints such as `fid<=vanilla+0.5`.

A filter holds a column against given values; a constraint holds a metric against a number or against vanilla's own
value. A mistake is a `QueryError` of one sentence that names the expression, and for a name that nobody knows the
nearest and the known ones.
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
from search_spaces.goals import Constraint
from search_spaces.overrides import config_keys
from search_spaces.params import ConfigError

if TYPE_CHECKING:
    import pyarrow

ORDER: Mapping[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
NOTHING = "null"  # how an expression writes that a row has no value in the column
_FILTER = re.compile(r"\s*([^\s=!<>]+)\s*(<=|>=|==|!=|=|<|>|(?<=\s)in\s|(?<=\s)not\s+in\s)\s*(.*?)\s*")


class QueryError(ValueError):
    """An expression that cannot be read, or that asks for what is not there."""


@dataclass(frozen=True, slots=True)
class Filter:
    """`column` compared with `values` by `relation`: =, !=, <, <=, >, >= with one value, `in` and `not in` with any.

    A row without a value in the column passes `!=` and `not in` only; the value `null` stands for having none.
    """

    text: str
    column: str
    relation: str
    values: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Filter:
        """Read `column relation value`; values of `in` are separated by commas, quotes around a value are dropped."""
        match = _FILTER.fullmatch(text)
        if match is None:
            raise QueryError(
                f"filter {text!r}: write COLUMN=VALUE, with =, !=, <, <=, >, >= or in, such as tree.depth>=4 or "
                "'acceptance.k in 10,100'"
            )
        column, sign, rest = match.groups()
        relation = {"==": "="}.get(sign, " ".join(sign.split()))
        values = [part.strip() for part in rest.split(",")] if relation.endswith("in") else [rest]
        return cls(text, column, relation, tuple(_unquoted(value) for value in values))

    def mask(self, table: pyarrow.Table) -> Bools:
        """Which rows pass: bool [rows]."""
        import pyarrow as pa

        if self.column not in table.column_names:
            if self.column not in config_keys():
                raise QueryError(f"filter {self.text!r}: {unknown('column', self.column, table.column_names)}")
            return self._holds([None] * table.num_rows, lambda value: value)  # a knob that no trial here has
        kind = table.schema.field(self.column).type
        if pa.types.is_boolean(kind):
            return self._holds(table[self.column].to_pylist(), self._truth)
        is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
        if not is_number and self.relation in ORDER and not pa.types.is_null(kind):
            raise QueryError(f"filter {self.text!r}: {self.column} holds words, which have no order; use =, != or in")
        return self._holds(table[self.column].to_pylist(), self._number if is_number else str)

    def _holds(self, column: Sequence[Any], read: Callable[[str], Any]) -> Bools:
        wanted = [None if value == NOTHING else read(value) for value in self.values]
        if self.relation in ORDER:
            if wanted[0] is None:
                raise QueryError(f"filter {self.text!r}: {NOTHING} has no order; use = or !=")
            compare = ORDER[self.relation]
            return np.array([value is not None and compare(value, wanted[0]) for value in column], dtype=np.bool_)
        within = np.array([value in wanted for value in column], dtype=np.bool_)
        return ~within if self.relation in ("!=", "not in") else within

    def _number(self, value: str) -> float:
        try:
            return float(value)
        except ValueError:
            raise QueryError(f"filter {self.text!r}: {self.column} holds numbers, got {value!r}") from None

    def _truth(self, value: str) -> bool:
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
    """By how much each row misses a constraint, in the metric's unit: at most 0 is within, NaN was not measured.

    metrics: those that there are. vanilla: vanilla's own values of them.

    Raises:
        QueryError: it cannot be read, names an unknown metric, or needs a value of vanilla's that is not there.
    """
    try:
        constraint = Constraint.parse(text)
    except ConfigError as error:
        raise QueryError(f"limit {text!r}: {error}") from error
    name = constraint.metric
    if name not in metrics:
        raise QueryError(f"limit {text!r}: {unknown('metric', name, metrics)}")
    if constraint.relative_to_vanilla and name not in vanilla:
        raise QueryError(f"limit {text!r}: vanilla's {name} has not been measured in this sweep; give a number instead")
    column = table[name].to_pylist() if name in table.column_names else [None] * table.num_rows
    missed = [np.nan if v is None else constraint.violation(v, vanilla.get(name)) for v in column]
    return np.array(missed, dtype=np.float64)


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """The words for a name that nobody knows: the nearest one and all that are known."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"there is no {what} {name!r}; {hint}known: {', '.join(known) or 'none'}"


def _unquoted(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value
