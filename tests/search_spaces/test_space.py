"""Spaces: what they suggest, what a study sees of it, and what is refused, each with its one
line.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces.acceptance import RULES, AcceptanceRule
from search_spaces.documents import read_document
from search_spaces.domains import Interval, Scalar, TrialLike, Values
from search_spaces.drafters import Eagle
from search_spaces.neighbourhoods import Multiplicative
from search_spaces.params import ConfigError, at
from search_spaces.presets import PRESETS
from search_spaces.schedules import Constant
from search_spaces.space import Space
from search_spaces.trees import Adjacency, Chain
from search_spaces.trial import DecodingConfig, Sampling

CONDITIONAL = """
- drafter: [eagle, independent]
  tree:
    - {policy: chain, length: {low: 2, high: 6}}
    - {policy: dynamic, depth: 3, width: {values: [2, 4]}, nodes: 8}
    - {policy: static, paths: {values: [[[0]], [[0], [1]], [[0], [0, 0], [0, 0, 0], [0, 0, 0, 0], [1], [2], [3]]]}}
  acceptance:
    - exact
    - {neighbourhood: additive, k: {low: 2, high: 200, log: true}, delta: {low: 1e-2, high: 0.5, log: true}}
    - neighbourhood: multiplicative
      k: {low: 2, high: 20}
      lambda: {low: 1.5, high: 3.0, step: 0.5}
      schedule: [constant, {schedule: exponential, nu: {values: [0.1, 0.2]}}]
      budget: {low: 1.0, high: 2.0}
- drafter: {kind: jacobi, initialisation: random}
  tree: {policy: chain, length: {low: 4, high: 15}}
  sampling: {cfg: {low: 1.0, high: 3.0}}
"""


class Trial:
    """Answers at random, or from `answers`, and records; a name may come only once."""

    def __init__(self, seed: int = 0, answers: dict[str, Any] | None = None) -> None:
        self.random, self.answers = random.Random(seed), answers
        self.params: dict[str, Any] = {}

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        if step is not None:
            return float(
                self.answer(name, low + step * self.random.randint(0, round((high - low) / step)))
            )
        return float(self.answer(name, self.random.uniform(low, high)))

    def suggest_int(
        self, name: str, low: int, high: int, *, step: int = 1, log: bool = False
    ) -> int:
        return int(self.answer(name, self.random.randrange(low, high + 1, step)))

    def suggest_categorical(self, name: str, choices: Sequence[Scalar]) -> Scalar:
        assert all(isinstance(choice, str | int | float) for choice in choices)
        chosen: Scalar = self.answer(name, self.random.choice(choices))
        return chosen

    def answer(self, name: str, value: Any) -> Any:
        assert name not in self.params, f"{name} was asked for twice"
        self.params[name] = value if self.answers is None else self.answers[name]
        return self.params[name]


def read(text: str) -> Space:
    """The space in YAML text; its first line is line 2 of f, below `space:`."""
    indented = "".join(f"  {line}\n" for line in text.splitlines())
    document = read_document("space:\n" + indented, "f")
    with document.locate_errors(), at("space"):
        return Space.read(document.data["space"])


@pytest.fixture(scope="module")
def conditional() -> Space:
    return read(CONDITIONAL)


def test_a_study_sees_readable_names(conditional: Space) -> None:
    assert conditional.parameters() == {
        "space": ("eagle|independent", "jacobi"),
        "drafter": ("eagle", "independent"),
        "tree": ("chain", "dynamic", "static"),
        "tree=chain.length": Interval(2, 6, integer=True),
        "tree.width": Values((2, 4), (2, 4)),
        "tree.paths": Values(
            (((0,),), ((0,), (1,)), ((0,), (0, 0), (0, 0, 0), (0, 0, 0, 0), (1,), (2,), (3,))),
            ("[[0]]", "[[0],[1]]", "7 entries"),
        ),
        "acceptance": ("exact", "additive", "multiplicative+constant|exponential"),
        "acceptance=additive.k": Interval(2, 200, integer=True, log=True),
        "acceptance.delta": Interval(0.01, 0.5, integer=False, log=True),
        "acceptance=multiplicative+constant|exponential.k": Interval(2, 20, integer=True),
        "acceptance.lambda": Interval(1.5, 3.0, integer=False, step=0.5),
        "acceptance.schedule": ("constant", "exponential"),
        "acceptance.nu": Values((0.1, 0.2), (0.1, 0.2)),
        "acceptance.budget": Interval(1.0, 2.0, integer=False),
        "space=jacobi.tree.length": Interval(4, 15, integer=True),
        "sampling.cfg": Interval(1.0, 3.0, integer=False),
    }


def test_alike_branches_share_a_parameter_and_others_do_not() -> None:
    rule = "{neighbourhood: %s, k: {low: 2, high: %d}, %s: {values: [1, 0.5]}}"
    text = "drafter: eagle\ntree: {policy: chain, length: 2}\nacceptance: [%s, %s]"
    additive = rule % ("additive", 9, "delta")
    shared = read(
        text % (additive, "{neighbourhood: multiplicative, k: {low: 2, high: 9}, lambda: 2}")
    )
    assert "acceptance.k" in shared.parameters()
    apart = read(
        text % (additive, "{neighbourhood: multiplicative, k: {low: 2, high: 8}, lambda: 2}")
    )
    assert {"acceptance=additive.k", "acceptance=multiplicative.k"} < set(apart.parameters())
    twins = read(text % (additive, rule % ("additive", 8, "delta")))
    assert {"acceptance=additive#1.k", "acceptance=additive#2.k"} < set(twins.parameters())
    detail = read(
        "drafter: eagle\ntree: [{policy: static, name: chain_5}, {policy: static, name: eagle1_26}]"
    )
    assert detail.parameters() == {"tree": ("static(name=chain_5)", "static(name=eagle1_26)")}


@given(st.integers(0, 10**9))
@settings(deadline=None, max_examples=150)
def test_a_suggestion_is_a_config_whose_parameters_are_found_again(seed: int) -> None:
    space = _CONDITIONAL
    trial, baseline = Trial(seed), Sampling(cfg=1.5, top_k=7)
    config = space.suggest(trial, baseline)
    assert config.sampling is not None
    assert config.sampling.top_k == 7
    assert config.sampling.cfg == trial.params.get("sampling.cfg", 1.5)
    assert trial.params.keys() <= space.parameters().keys()
    found = space.params_of(config, baseline)
    assert found == trial.params
    assert space.suggest(Trial(answers=found), baseline) == config
    assert space.params_of(config.with_sampling(Sampling(cfg=1.5, top_k=8)), baseline) is None


_CONDITIONAL = read(CONDITIONAL)


def test_optuna_takes_the_suggestions_and_the_enqueued_parameters(conditional: Space) -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=1, n_startup_trials=5))
    first = DecodingConfig(
        Eagle(), Chain(length=3), AcceptanceRule(Multiplicative(k=5, lam=2.0)), Sampling()
    )
    params = conditional.params_of(first)
    assert params is not None
    study.enqueue_trial(params)
    for number in range(25):
        trial = study.ask()
        protocol: TrialLike = trial
        config = conditional.suggest(protocol)
        assert conditional.params_of(config) == trial.params
        assert number > 0 or config == first
        study.tell(trial, float(config.policy.bounds.depth))


@pytest.mark.parametrize("name", ["eagle2", "vanilla", "lantern", "sjd"])
def test_settings_outside_have_no_parameters(conditional: Space, name: str) -> None:
    inside = conditional.params_of(PRESETS[name], Sampling(cfg=2.0))
    assert (inside is not None) == (name == "sjd")
    if name == "sjd":
        assert inside == {"space": "jacobi", "space=jacobi.tree.length": 15, "sampling.cfg": 2.0}
        assert conditional.params_of(PRESETS[name], Sampling(cfg=3.5)) is None


def test_a_fixed_value_without_effect_leaves_a_setting_inside() -> None:
    space = read(
        "drafter: eagle\ntree: {policy: chain, length: {low: 2, high: 8}}\nacceptance: {budget: "
        "{low: 1, high: 2}, resampling: optimal}\n"
    )
    config = DecodingConfig(Eagle(), Chain(3), AcceptanceRule(schedule=Constant(1.5)))
    assert space.params_of(config) == {"tree.length": 3, "acceptance.budget": 1.5}
    other = DecodingConfig(Eagle(), Chain(3), RULES["lantern"])
    assert space.params_of(other) is None


def test_spaces_that_are_finite_have_a_grid() -> None:
    space = read(
        "drafter: eagle\ntree: [{policy: chain, length: {low: 2, high: 8, step: 3}}, {policy: "
        "static, name: chain_5}]\nacceptance: [exact, {schedule: constant, budget: {low: 1.1, "
        "high: 1.3, step: 0.1}}]\nsampling: {cfg: {values: [1, 2]}, top_p: 0.9}\n"
    )
    points = list(space.grid())
    assert space.size() == len(points) == 4 * 4 * 2
    assert points[0] == {
        "tree": "chain",
        "tree.length": 2,
        "acceptance": "exact",
        "sampling.cfg": 1.0,
    }
    assert {point.get("tree.length") for point in points} == {None, 2, 5, 8}
    assert {point.get("acceptance.budget") for point in points} == {None, 1.1, 1.2, 1.3}
    configs = [space.suggest(Trial(answers=point)) for point in points]
    assert len(set(configs)) == len(points)
    assert [space.params_of(config) for config in configs] == points


def test_continuous_spaces_have_no_grid(conditional: Space) -> None:
    assert conditional.size() is None
    with pytest.raises(ConfigError, match="continuous") as caught:
        next(conditional.grid())
    assert caught.value.path == ("[0]", "acceptance", "[1]", "delta")


def test_one_point_needs_no_parameters() -> None:
    space = read(
        "drafter: eagle\ntree: [{policy: chain, length: {low: 3, high: 3}}]\nacceptance: {values: "
        "[lantern]}"
    )
    assert space.parameters() == {}
    assert list(space.grid()) == [{}]
    assert next(space.branches()).leaves[0].domain.is_fixed
    assert space.suggest(Trial()).acceptance == RULES["lantern"]
    assert Space.read({}).suggest(Trial()) == DecodingConfig(sampling=Sampling())


def test_a_tree_is_hashable_and_names_its_fixed_fields() -> None:
    text = (
        "drafter: eagle\ntree: [{policy: chain, length: 3}, {policy: chain, length: {low: 4, high: "
        "6}}]"
    )
    assert hash(read(text)) == hash(read(text))
    names = {leaf.name for branch in read(text).branches() for leaf in branch.leaves}
    assert names == {"drafter.kind", "tree.policy", "tree.length"}


def test_tags_may_be_searched_with_shared_knobs() -> None:
    space = read(
        "drafter: eagle\ntree: {policy: chain, length: 3}\nacceptance: {schedule: {values: "
        "[constant, linear, exponential]}, budget: {low: 1.0, high: 2.0}, nu: 0.3}"
    )
    schedules = [space.suggest(Trial(seed)).acceptance.schedule for seed in range(30)]
    assert {schedule.kind for schedule in schedules} == {"constant", "linear", "exponential"}
    assert {getattr(schedule, "nu", None) for schedule in schedules} == {None, 0.3}
    assert set(space.parameters()) == {"acceptance.schedule", "acceptance.budget"}


def test_combinations_inside_a_branch_are_checked_when_suggested() -> None:
    # each listed value goes with the first and with the last of all others, but the two in the
    # middle not together
    space = read(
        "drafter: eagle\n"
        "tree:\n"
        "  policy: adjacency\n"
        "  depth_range: {values: [[2, 10], [2, 5], [2, 9]]}\n"
        "  start_depth: {values: [3, 8, 4]}\n"
        "  nodes: {low: 6, high: 9}\n"
        "  width_step: {low: 1, high: 3}\n"
    )
    answers = {
        "tree.depth_range": "[2,5]",
        "tree.start_depth": 8,
        "tree.nodes": 6,
        "tree.width_step": 1,
    }
    with pytest.raises(
        ConfigError, match=r"^tree\.start_depth: must be within depth_range \[2, 5\], got 8$"
    ):
        space.suggest(Trial(answers=answers))
    assert space.suggest(Trial(answers=answers | {"tree.start_depth": 4})).policy == Adjacency(
        depth_range=(2, 5), start_depth=4, nodes=6, width_step=1
    )


def test_lists_of_numbers_keep_their_names() -> None:
    space = read(
        "drafter: eagle\ntree: {policy: adjacency, width_range: {values: [[4, 13], [2, 10]]}}"
    )
    assert space.parameters() == {
        "tree.width_range": Values(((4, 13), (2, 10)), ("[4,13]", "[2,10]"))
    }


def test_many_knobs_are_built_at_a_bounded_number_of_corners() -> None:
    keys = ("width_step", "depth_step", "nodes", "beta", "radius")
    spans = "\n".join(f"  {key}: {{low: 1, high: 9}}" for key in keys)
    text = (
        f"drafter: eagle\ntree:\n  policy: adjacency\n{spans}\n  start_depth: {{low: 2, high: 11}}"
    )
    with pytest.raises(ConfigError) as caught:
        read(text)
    assert (
        str(caught.value)
        == "f:10: space.tree.start_depth: must be within depth_range [2, 10], got 11 (at "
        "tree.start_depth 11)"
    )


TREE = "drafter: eagle\ntree: {policy: chain, length: 3}\n"
BROKEN = [
    (
        "drafte: eagle",
        (
            "f:2: space.drafte: unknown key; did you mean 'drafter'? known keys: drafter, tree, "
            "acceptance, sampling"
        ),
    ),
    ("3", "f:1: space: must be a mapping of keys to values, got 3"),
    ("[]", "f:1: space: must not be empty; list the branches, or leave the key out"),
    (
        "- drafter: none\n- drafter: none",
        "f:3: space[1]: is the same branch as [0]; remove one of the two",
    ),
    (
        "drafter: eagel",
        (
            "f:2: space.drafter: must be one of none, eagle, eagle3, medusa, independent, jacobi, "
            "rows, jacobi_rows, vertical, or a plugin's (--plugin MODULE), got 'eagel'; did you mean "
            "'eagle'?"
        ),
    ),
    (
        "drafter: [eagle, eagle]",
        "f:2: space.drafter[1]: is the same branch as [0]; remove one of the two",
    ),
    (
        "drafter: {kind: {values: [eagle, jacoby]}}",
        (
            "f:2: space.drafter.kind.values[1]: must be one of none, eagle, eagle3, medusa, "
            "independent, jacobi, rows, jacobi_rows, vertical, or a plugin's (--plugin MODULE), got "
            "'jacoby'; did you mean 'jacobi'?"
        ),
    ),
    (
        "drafter: eagle\ntree: {policy: chain, lenght: {low: 2, high: 3}}",
        (
            "f:3: space.tree.lenght: unknown key; did you mean 'length'? known keys: policy, "
            "length, children"
        ),
    ),
    (
        "drafter: eagle\ntree: {policy: chain, depth: {low: 2, high: 3}}",
        (
            "f:3: space.tree.depth: not a key of policy 'chain' but of 'branching', 'dynamic', "
            "'best_first'; known keys: policy, length, children"
        ),
    ),
    (
        "drafter: eagle\ntree: {policy: chain, length: {low: 6, high: 2}}",
        "f:3: space.tree.length.low: must be at most high, got 6 and 2; swap the two",
    ),
    (
        "drafter: eagle\ntree: {policy: chain, length: {low: 0, high: 2}}",
        "f:3: space.tree.length.low: must be in [1, 256], got 0",
    ),
    (
        "drafter: eagle\ntree: {policy: chain, length: {low: 1, high: 2.5}}",
        "f:3: space.tree.length.high: must be a whole number, got 2.5",
    ),
    (
        "drafter: eagle\ntree:\n  policy: chain\n  length:\n    low: 1\n    hihg: 3",
        (
            "f:7: space.tree.length.hihg: unknown key; did you mean 'high'? known keys: low, high, "
            "log, step, values"
        ),
    ),
    (
        "drafter: eagle\ntree: {policy: chain, length: {low: 1}}",
        "f:3: space.tree.length.high: missing; a range has a low and a high (in [1, 256])",
    ),
    (
        "drafter: eagle\ntree: {policy: chain, length: {low: 1, high: 9, step: 3}}",
        (
            "f:3: space.tree.length.step: steps of 3 from 1 reach 7 and 10 but not 9; make one of "
            "them high"
        ),
    ),
    (
        "drafter: eagle\ntree: {policy: chain, length: {low: 1, high: 3, step: 5}}",
        "f:3: space.tree.length.step: 1 + 5 is more than 3; make the step at most 2",
    ),
    (
        "drafter: eagle\ntree: {policy: chain, length: {low: 1, high: 3, step: 0.5}}",
        "f:3: space.tree.length.step: must be a whole number greater than 0, got 0.5",
    ),
    (
        "drafter: eagle\ntree: {policy: chain, length: {low: 1, high: 3, step: 1, log: true}}",
        (
            "f:3: space.tree.length.step: cannot be combined with `log`; remove one of the two, or "
            "list the values"
        ),
    ),
    (
        "drafter: eagle\ntree: {policy: chain, length: {low: 1, high: 3, log: yess}}",
        "f:3: space.tree.length.log: must be true or false, got 'yess'",
    ),
    (
        "drafter: eagle\ntree: {policy: chain, length: {low: 1, values: [2]}}",
        (
            "f:3: space.tree.length.low: cannot be combined with `values`; give either values, or "
            "low and high"
        ),
    ),
    (
        "drafter: eagle\ntree: {policy: chain, length: {values: []}}",
        "f:3: space.tree.length.values: must not be empty; list what the search may choose from",
    ),
    (
        "drafter: eagle\ntree: {policy: chain, length: {values: [2, 3, 2]}}",
        "f:3: space.tree.length.values[2]: 2 is listed twice; remove one of the two",
    ),
    (
        "drafter: eagle\ntree: {policy: chain, length: {values: 3}}",
        "f:3: space.tree.length.values: must be a list, got 3",
    ),
    (
        "drafter: eagle\ntree: {policy: chain, length: [2, 3]}",
        (
            "f:3: space.tree.length: to search several values write {values: [2, 3]}, or for a "
            "range {low: 2, high: 3}"
        ),
    ),
    (
        "drafter: eagle\ntree: {policy: chain, length: 2, children: [sampled, top]}",
        "f:3: space.tree.children: to search several values write {values: ['sampled', 'top']}",
    ),
    (
        "drafter: eagle\ntree: {policy: chain, length: [{low: 2, high: 3}]}",
        (
            "f:3: space.tree.length: branches belong one level up; write {values: [...]} or {low: "
            "..., high: ...} here"
        ),
    ),
    (
        "drafter: eagle\ntree: {policy: chain, length: 3, children: {values: [top, sample]}}",
        (
            "f:3: space.tree.children.values[1]: must be one of sampled, top, got 'sample'; did "
            "you mean 'sampled'?"
        ),
    ),
    (
        "drafter: eagle\ntree: {policy: chain, length: 3, children: {low: 1, high: 2}}",
        (
            "f:3: space.tree.children: is not numeric, so it has no range; write {values: [...]} "
            "of sampled, top"
        ),
    ),
    (
        "drafter: eagle\ntree: {policy: static, paths: {values: [[[0]], [[1]]]}}",
        (
            "f:3: space.tree.paths: node [1] skips a rank: its sibling [0] is not in the tree; add "
            "it (at tree.paths ((1,),))"
        ),
    ),
    (
        "drafter: eagle\ntree: {policy: chain}",
        "f:3: space.tree.length: missing; give the number of drafted tokens (in [1, 256])",
    ),
    (
        "drafter: eagle",
        (
            "f:1: space.tree.policy: drafter 'eagle' needs a tree; choose one of chain, static, "
            "branching, dynamic, best_first, adjacency, window"
        ),
    ),
    (
        "drafter: [none, eagle]\ntree: {policy: chain, length: 2}",
        (
            "f:2: space.drafter[0]: the 'chain' tree needs a drafter; choose one of eagle, eagle3, "
            "medusa, independent, jacobi, jacobi_rows (in the branch none)"
        ),
    ),
    (
        (
            "drafter: jacobi\ntree:\n  - {policy: chain, length: 3}\n  - {policy: dynamic, depth: "
            "2, width: 2, nodes: 3}"
        ),
        (
            "f:5: space.tree[1].policy: drafter 'jacobi' keeps a window: use a fixed tree, such as "
            "'chain', not 'dynamic' (in the branch dynamic)"
        ),
    ),
    (
        TREE + "acceptance: {neighbourhood: additive, k: 9, delta: {low: 0, high: 0.5, log: true}}",
        (
            "f:4: space.acceptance.delta.low: must be greater than 0 for log, got 0.0; raise it to "
            "at least a small number such as 0.001"
        ),
    ),
    (
        TREE + "acceptance: {neighbourhood: additive, k: 9, delta: {low: 0.1, high: 1.5}}",
        "f:4: space.acceptance.delta.high: must be in [0, 1], got 1.5",
    ),
    (
        TREE
        + "acceptance: {neighbourhood: additive, k: 9, delta: {low: 0.1, high: 0.5, step: -1}}",
        "f:4: space.acceptance.delta.step: must be a number greater than 0, got -1",
    ),
    (
        TREE + "acceptance: {schedule: constant, budget: {low: 0, high: 2}}",
        "f:4: space.acceptance.budget.low: must be greater than 0, got 0",
    ),
    (
        TREE + "acceptance: lanter",
        (
            "f:4: space.acceptance: must be one of exact, uniform, cool, lantern, lantern_pp, "
            "grouped, got 'lanter'; did you mean 'lantern'?"
        ),
    ),
    (
        TREE + "acceptance:\n  - exact\n  - {neighbourhood: multiplicative, k: 9, delta: 0.2}",
        (
            "f:6: space.acceptance[1].delta: not a key of neighbourhood 'multiplicative' but of "
            "'additive', 'typical'; known keys: neighbourhood, schedule, modulation, "
            "verification, resampling, k, lambda, proximity, budget"
        ),
    ),
    (
        TREE + "acceptance: {schedule: [constant, {nu: 0.1}]}",
        (
            "f:4: space.acceptance.schedule[1].schedule: missing; name the schedule of this "
            "branch, one of constant, linear, exponential"
        ),
    ),
    (
        TREE + "acceptance: {schedule: [constant, {schedule: exponential, nu: 0.1}], nu: 0.2}",
        (
            "f:4: space.acceptance.nu: given here and in the branch 'exponential'; remove one of "
            "the two"
        ),
    ),
    (
        (
            "drafter: eagle\ntree: {policy: chain, length: {low: 2, high: 6}}\n"
            "acceptance: {schedule: linear, budget: 1, slope: {low: 0.1, high: 0.5}}"
        ),
        (
            "f:4: space.acceptance.slope: must be less than 0.4 for a mean budget of 1 over 6 "
            "levels, got 0.5: the last level's budget would be -0.25 (at tree.length 6, "
            "acceptance.slope 0.5)"
        ),
    ),
    (
        "sampling: {cfg: {low: -1, high: 3}}",
        "f:2: space.sampling.cfg.low: must be at least 0, got -1",
    ),
    (
        "sampling: {temprature: 1}",
        (
            "f:2: space.sampling.temprature: unknown key; did you mean 'temperature'? known keys: "
            "dynamic_temperature, temperature, top_k, top_p, "
            "cfg"
        ),
    ),
    ("sampling: cold", "f:2: space.sampling: must be a mapping of keys to values, got 'cold'"),
    (
        "acceptance: lantern",
        "f:2: space.acceptance: has no effect without drafts; remove it, or choose a drafter",
    ),
]


@pytest.mark.parametrize(("text", "message"), BROKEN, ids=range(len(BROKEN)))
def test_refusals(text: str, message: str) -> None:
    assert len(BROKEN) >= 30
    with pytest.raises(ConfigError) as caught:
        read(text)
    assert str(caught.value) == message
    assert "\n" not in message


@given(
    low=st.integers(1, 50),
    width=st.integers(0, 40),
    step=st.none() | st.integers(1, 10),
    log=st.booleans(),
)
@settings(deadline=None, max_examples=150)
def test_spans_hold_exactly_what_they_say(
    low: int, width: int, step: int | None, log: bool
) -> None:
    span: dict[str, Any] = {"low": low, "high": low + width, "log": log} | (
        {} if step is None else {"step": step}
    )
    data = {"drafter": "eagle", "tree": {"policy": "chain", "length": span}}
    if step is not None and (log or width % step):
        with pytest.raises(ConfigError) as caught:
            Space.read(data)
        assert caught.value.path == ("tree", "length", "step")
        return
    space = Space.read(data)
    lengths = [space.suggest(Trial(answers=point)).policy.bounds.depth for point in space.grid()]
    assert lengths == list(range(low, low + width + 1, step or 1))
    for length in range(max(1, low - 2), low + width + 3):
        inside = space.params_of(DecodingConfig(Eagle(), Chain(length=length)))
        assert (inside is not None) == (length in lengths)
