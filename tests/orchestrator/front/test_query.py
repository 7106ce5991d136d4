"""Filters and constraints: what passes, and what is said to a mistake."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pyarrow as pa
import pytest

from orchestrator.errors import QueryError
from orchestrator.front.query import limit_confidence, parse_limit, passing
from orchestrator.store.records import TrialRecord
from workers.metrics.definition import Metric
from workers.metrics.estimate import Estimate

TABLE = pa.table(
    {
        "label": ["vanilla", "", "lantern", ""],
        "tree.depth": pa.array([None, 3, 5, 4], pa.int64()),
        "acceptance.k": pa.array([None, 10, 100, 12], pa.int64()),
        "acceptance.delta": pa.array([None, 0.1, 0.25, None], pa.float64()),
        "feasible": [True, True, False, True],
        "cause": pa.array([None] * 4, pa.string()),
        "fid": pa.array([4.0, 4.5, 5.0, None], pa.float64()),
    }
)


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("label=lantern", [2]),
        ("label == 'lantern'", [2]),
        ("label!=vanilla", [1, 2, 3]),
        ("label=", [1, 3]),
        ("label in vanilla, lantern", [0, 2]),
        ("label not in vanilla,lantern", [1, 3]),
        ("tree.depth>=4", [2, 3]),
        ("tree.depth > 4", [2]),
        ("tree.depth<4", [1]),
        ("tree.depth!=4", [0, 1, 2]),
        ("tree.depth=null", [0]),
        ("tree.depth != null", [1, 2, 3]),
        ("acceptance.k in 10,100", [1, 2]),
        ("acceptance.k not  in 10, null", [2, 3]),
        ("acceptance.delta=0.1", [1]),
        ("acceptance.delta<=.25", [1, 2]),
        ("feasible=true", [0, 1, 3]),
        ("feasible!=True", [2]),
        ("feasible", [0, 1, 3]),
        (" not  feasible ", [2]),
        ("not feasible and label=lantern", [2]),
        ("label!=lantern and feasible and tree.depth<4", [1]),
        ("fid>=4 and not feasible", [2]),
        ("label=lantern or tree.depth<4", [1, 2]),
        ("feasible and label=vanilla or not feasible", [0, 2]),
        ("label='lantern or feasible'", []),
        ("label=lantern and feasible", []),
        ("label='lantern and feasible'", []),
        ("cause=null", [0, 1, 2, 3]),
        ("cause!=OutOfMemoryError", [0, 1, 2, 3]),
        ("sampling.top_k>=1", []),  # a knob that no trial here has
        ("sampling.top_k=null", [0, 1, 2, 3]),
    ],
)
def test_what_passes(text: str, rows: list[int]) -> None:
    assert [row for row, passes in enumerate(passing(TABLE, [text])) if passes] == rows


def test_all_filters_must_pass() -> None:
    assert passing(TABLE, ["tree.depth>=4", "label!=lantern"]).tolist() == [
        False,
        False,
        False,
        True,
    ]
    assert passing(TABLE, ["tree.depth>=4 and label!=lantern"]).tolist() == [
        False,
        False,
        False,
        True,
    ]
    assert passing(
        TABLE, ["label in vanilla,lantern and tree.depth not in 3 and fid>4"]
    ).tolist() == [
        False,
        False,
        True,
        False,
    ]
    assert passing(TABLE, []).all()
    with pytest.raises(QueryError, match=r"^where: give a list, such as where=\['lossless'\]$"):
        passing(TABLE, "lossless")


@pytest.mark.parametrize("text", ["label=red and blue", "label='a and b=2'", 'label = "a and b=2"'])
def test_and_inside_a_value_is_part_of_it(text: str) -> None:
    table = pa.table({"label": ["red and blue", "a and b=2", "red"]})
    assert passing(table, [text]).sum() == 1


def test_a_limit_relative_to_vanilla_is_no_filter() -> None:
    with pytest.raises(QueryError, match="--subject-to"):
        passing(TABLE, ["fid<=1.2*vanilla"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tree.dept>=4", "tree.dept: unknown column; did you mean 'tree.depth'?"),
        ("fud<=4", "known columns: label, tree.depth"),
        ("tree.depth", "write COLUMN=VALUE"),
        ("tree.depth ~ 4", "write COLUMN=VALUE"),
        ("feasibel", "stand alone: feasible"),
        ("not tree.depth", "stand alone: feasible"),
        ("tree.depth>=deep", "tree.depth holds numbers, got 'deep'"),
        ("label>=lantern", "label holds text, which has no order"),
        ("feasible=maybe", "feasible holds true or false, got 'maybe'"),
        ("feasible=1", "feasible holds true or false, got '1'"),
        ("feasible=NULL", "feasible holds true or false, got 'NULL'"),
        ("tree.depth<null", "null has no order"),
    ],
)
def test_a_mistake_is_one_sentence_that_names_the_expression(text: str, words: str) -> None:
    with pytest.raises(QueryError) as caught:
        passing(TABLE, [text])
    assert words in str(caught.value)
    assert repr(text) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "column", "words"),
    [
        ("tree.depth>=", "tree.depth", "number is missing after >="),
        ("fid <= ", "fid", "number is missing after <="),
        ("fid!=", "fid", "number is missing after !="),
        ("tree.width<", "tree.width", "number is missing after <"),  # a key that no trial has
        ("feasible=", "feasible", "true or false is missing after ="),
        ("acceptance.k in", "acceptance.k", "number is missing after in"),
        ("acceptance.k not in ", "acceptance.k", "number is missing after not in"),
        ("acceptance.k in 10, ", "acceptance.k", "number is missing after in"),
        ("label in a,", "label", "value is missing after in"),
        ("fid<=1.2 *", "fid", "ends with *"),
        ("fid<=vanilla+", "fid", "ends with +"),
        ("fid<=-", "fid", "ends with -"),
        ("fid<=4 and", "fid", "ends with and"),
        ("label=lantern and ", "label", "ends with and"),
        ("fid<=4 or", "fid", "ends with or"),
        ("label='two words", "label", "closing '"),
    ],
)
def test_an_unfinished_filter_says_what_is_missing(text: str, column: str, words: str) -> None:
    with pytest.raises(QueryError) as caught:
        passing(TABLE, [text])
    assert f"{column}: " in str(caught.value)
    assert words in str(caught.value)
    assert "got" not in str(caught.value)


@pytest.mark.parametrize(
    "end", ["<=", " >= ", "<", "<= 1.2 *", "<= vanilla +", ">= vanilla * 2 -", "≤"]
)
def test_an_unfinished_limit_says_what_is_missing(end: str) -> None:
    with pytest.raises(QueryError, match=re.escape(f"missing after {end.split()[-1]}")):
        parse_limit(f"fid{end}", ["fid"], {})


@pytest.mark.parametrize(
    ("text", "within"),
    [
        ("fid<=4.5", [True, True, False, False]),
        ("fid <= vanilla + 0.5", [True, True, False, False]),
        ("fid >= 1.1 * vanilla", [False, True, True, False]),
        ("fid<=0.5*vanilla", [False, False, False, False]),
    ],
)
def test_constraints(text: str, within: list[bool]) -> None:
    limit = parse_limit(text, ["fid", "drift"], {"fid": Estimate(4.0, math.inf, 9)})
    metrics = [
        {} if fid is None else {"fid": Estimate(fid, math.inf, 9)}
        for fid in TABLE["fid"].to_pylist()
    ]
    assert [
        limit(TrialRecord(0, "", "complete", None, metrics=entries)) for entries in metrics
    ] == within


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("fdi<=4", "unknown metric; did you mean 'fid'? known metrics: fid, drift"),
        ("fid<4", "write 'fid <= 4'"),
        ("fid<1.2 vanilla", "fid <= vanilla + 0.5"),
        ("fid", "not a constraint"),
        ("drift<=vanilla+1", "has not measured vanilla's drift"),
    ],
)
def test_a_mistake_in_a_constraint(text: str, words: str) -> None:
    with pytest.raises(QueryError) as caught:
        parse_limit(text, ["fid", "drift"], {"fid": Estimate(4.0, math.inf, 9)})
    assert words in str(caught.value)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("drift <= 1.1 * vanilla", "drift <= vanilla + X"),
        ("drift >= 0.9 * vanilla", "drift >= vanilla - X"),
    ],
)
def test_a_multiple_of_a_value_that_is_zero_is_refused(text: str, fix: str) -> None:
    vanilla = {"drift": Estimate(0.0, 0.0, 9)}
    with pytest.raises(QueryError) as caught:
        parse_limit(text, ["drift"], vanilla)
    assert "vanilla's drift is 0" in str(caught.value)
    assert fix in str(caught.value)
    for meaningful in (
        "drift <= vanilla",
        "drift <= vanilla + 1",
        "drift <= 2 * vanilla + 1",
        "drift <= 1",
    ):
        parse_limit(meaningful, ["drift"], vanilla)
    parse_limit(text, ["drift"], {"drift": Estimate(0.1, 0.0, 9)})


def test_how_sure_a_limit_is_met_knows_what_a_trial_shares_with_vanilla() -> None:
    """Errors of 3 and 4 make 5: a limit one such error away is met with chance Phi(1) = 0.841 (3
    errors: 0.035).
    """
    axes = {"fid": Metric("fid", "minimize"), "clip": Metric("clip", "maximize")}

    def record(fid: float, error: float, effect: float = 0.0) -> TrialRecord:
        replicates = tuple(
            fid + effect * ((-1) ** block) / math.sqrt(23) for block in range(24) if effect
        )
        return TrialRecord(
            0, "", "complete", None, metrics={"fid": Estimate(fid, error, 9, replicates)}
        )

    trial, vanilla = record(10.0, 3.0), record(12.0, 4.0)
    assert limit_confidence(trial, vanilla, ["fid<=vanilla+3"], axes) == pytest.approx(
        0.841, abs=0.035
    )
    assert limit_confidence(trial, vanilla, ["fid<=10"], axes) == pytest.approx(0.5, abs=0.048)
    both = limit_confidence(trial, vanilla, ["fid<=vanilla+3", "fid<=10"], axes)
    assert both is not None
    assert both < 0.5
    assert limit_confidence(vanilla, vanilla, ["fid<=vanilla"], axes) == 1
    alike = record(10.0, 3.0, 3.0), record(10.1, 3.0, 3.0)
    assert limit_confidence(*alike, ["fid<=vanilla"], axes) == 1, "all of the error is shared"
    unknown = replace(vanilla, metrics={"fid": Estimate(12.0, math.inf, 9)})
    assert limit_confidence(trial, unknown, ["fid<=10"], axes) is not None
    assert limit_confidence(trial, unknown, ["fid<=vanilla"], axes) is None
    assert limit_confidence(unknown, vanilla, ["fid<=10"], axes) is None
