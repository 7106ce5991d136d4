"""Drafters: what proposes the tokens that the target verifies. Their models are in
`workers.drafters`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from search_spaces.params import Abbreviations, ConfigError, Params, Range, Symbol
from search_spaces.plugins import Registry
from search_spaces.trees import POLICIES, Chain, TreeBounds, TreePolicy


class DrafterChoice(Params):
    """The model, or the procedure, that proposes tokens."""

    __slots__ = ()
    # "module:Class" of a `workers.decoding.drafter.Drafter`, or without weights of a
    # `workers.decoding.drafting.Drafting`; imported when it is needed. Empty if nothing is drafted.
    implementation: ClassVar[str]
    # "module:Class" of the `workers.decoding.state.Batch` whose captions it drafts for.
    batch_class: ClassVar[str] = "workers.decoding.state:Batch"
    # Whether a target needs a weight file for it.
    has_weights: ClassVar[bool] = True
    # Whether it proposes tokens, so that it needs a tree, and an acceptance rule decides about
    # them.
    has_drafts: ClassVar[bool] = True
    # Whether it has no weights and keeps sampled drafts from pass to pass, so that replay records
    # chains of several lengths (see `workers.replay.windows`). Replay cannot describe other
    # drafters without weights, nor windows that branch.
    keeps_window: ClassVar[bool] = False
    # Whether its probs at a level do not depend on the tokens of the levels before it.
    has_independent_levels: ClassVar[bool] = False
    # Whether it can draft after tokens that no pass has verified (see `CachedDrafter.look_ahead`).
    goes_on_unverified: ClassVar[bool] = False

    def is_exact(self, levels: int) -> bool:
        """Whether the probs that it states for its drafts are those that they were sampled from, in
        trees of at most so many levels.
        """
        return True

    @property
    def draws_afresh(self) -> bool:
        """Whether a draft depends on those of earlier passes only by the probs that it is sampled
        from.
        """
        return True

    @property
    def row_lag(self) -> int | None:
        """Tokens of an image row after which the next row begins, where several rows are decoded at
        once. Tokens then lack a part of the context that they have in raster order. None: raster
        order.
        """
        return None

    def keeps_context(self, cols: int | None) -> bool:
        """Whether the target predicts each token from all tokens before it in raster order, in
        images with so many tokens in a row (None: not known).
        """
        lag = self.row_lag
        return lag is None or (cols is not None and lag >= cols)

    def check_tree(self, policy: TreePolicy) -> None:
        """Raise ConfigError, with the key in a config, if the drafter cannot serve the policy."""
        if policy.needs_independent_levels and not self.has_independent_levels:
            able = ", ".join(kind for kind, one in DRAFTERS.items() if one.has_independent_levels)
            problem = (
                f"{policy.kind!r} is for drafters whose levels do not depend on each other; choose "
                f"one of {able}, or the tree 'dynamic'"
            )
            raise ConfigError(("tree", "policy"), problem)


DRAFTERS: Registry[type[DrafterChoice]] = Registry("drafter", "workers.drafters")


@DRAFTERS.register
@dataclass(frozen=True, slots=True)
class NoDrafter(DrafterChoice):
    """Plain autoregressive decoding."""

    kind: ClassVar[str] = "none"
    summary: ClassVar[str] = "plain autoregressive decoding, one pass of the target for each token"
    implementation: ClassVar[str] = ""
    has_weights: ClassVar[bool] = False
    has_drafts: ClassVar[bool] = False


@DRAFTERS.register
@dataclass(frozen=True, slots=True)
class Eagle(DrafterChoice):
    """One decoder layer on the target's features (EAGLE)."""

    kind: ClassVar[str] = "eagle"
    summary: ClassVar[str] = "a small layer that reads the target's features"
    paper: ClassVar[str] = "EAGLE (arXiv:2401.15077)"
    implementation: ClassVar[str] = "workers.drafters.eagle:EagleDrafter"
    goes_on_unverified: ClassVar[bool] = True


@DRAFTERS.register
@dataclass(frozen=True, slots=True)
class Eagle3(DrafterChoice):
    """One decoder layer on hidden states from three depths of the target, with a head of its own
    (EAGLE-3).
    """

    kind: ClassVar[str] = "eagle3"
    summary: ClassVar[str] = (
        "a small layer that reads hidden states of three of the target's layers"
    )
    paper: ClassVar[str] = "EAGLE-3 (arXiv:2503.01840)"
    implementation: ClassVar[str] = "workers.drafters.eagle3:Eagle3Drafter"


@DRAFTERS.register
@dataclass(frozen=True, slots=True)
class Medusa(DrafterChoice):
    """Heads on the target's last feature, one per level (Medusa)."""

    kind: ClassVar[str] = "medusa"
    summary: ClassVar[str] = "heads on the target's last feature, one for each level"
    paper: ClassVar[str] = "Medusa (arXiv:2401.10774)"
    implementation: ClassVar[str] = "workers.drafters.medusa:MedusaDrafter"
    has_independent_levels: ClassVar[bool] = True


@DRAFTERS.register
@dataclass(frozen=True, slots=True)
class Independent(DrafterChoice):
    """A small autoregressive model with the target's codebook (Leviathan et al.)."""

    kind: ClassVar[str] = "independent"
    short: ClassVar[str] = "indep"
    summary: ClassVar[str] = "a small autoregressive model"
    paper: ClassVar[str] = "speculative decoding (arXiv:2211.17192)"
    implementation: ClassVar[str] = "workers.drafters.independent:IndependentDrafter"
    goes_on_unverified: ClassVar[bool] = True


_SCD = "SCD (arXiv:2510.24211)"
_SJD_PLUS = "SJD++ (arXiv:2512.07503)"


@DRAFTERS.register
@dataclass(frozen=True, slots=True)
class Jacobi(DrafterChoice):
    """No drafter model: drafts are sampled from the target's own probs of the last pass, whose
    context was partly wrong (speculative Jacobi decoding, SJD).

    `initialisation` says how a position that was never drafted is filled. Its draft counts as a
    sample from uniform probs (`uniform`), or else as a point mass. `redraw` says how the drafts
    after a rejection are replaced: by `fresh` samples, by samples with the random numbers of their
    position (`coupled`), or by keeping old drafts (`maximal`, `reuse`; see
    `workers.decoding.redraws`). `probs` says which probs a redraw states for old drafts that it
    keeps: those that it samples from, or those of published code, which is not lossless.
    """

    kind: ClassVar[str] = "jacobi"
    summary: ClassVar[str] = (
        "a Jacobi window (each pass of the target gives the drafts of the next)"
    )
    paper: ClassVar[str] = "SJD (arXiv:2410.01699)"
    implementation: ClassVar[str] = "workers.decoding.jacobi:JacobiWindow"
    has_weights: ClassVar[bool] = False
    keeps_window: ClassVar[bool] = True
    leading: ClassVar[tuple[str, ...]] = ("redraw", "probs")
    initialisation: Annotated[
        Literal["uniform", "random", "repeat_left", "sample_left"],
        "initialisation of a position that has no probs yet",
        Abbreviations(uniform="unif", repeat_left="left", sample_left="sleft"),
    ] = "uniform"
    redraw: Annotated[
        Literal["fresh", "coupled", "maximal", "reuse"],
        "how drafts behind a rejection are replaced",
        Abbreviations(coupled="cpl", maximal="max"),
    ] = "fresh"
    threshold: Annotated[
        float | None, "ratio of probs above which `reuse` keeps a draft", Range(0, 1), Symbol("t")
    ] = None
    probs: Annotated[
        Literal["marginal", "published"] | None,
        "probs stated for redrawn drafts",
        Abbreviations(published="pub"),
    ] = None

    def lacks(self, name: str) -> str:
        # Keys without effect are None, so that equal settings are equal.
        is_unused = name == "threshold" and self.redraw != "reuse"
        is_unused |= name == "probs" and not self.keeps_drafts
        if is_unused:
            return f"redraw {self.redraw!r} has none; remove it, or use 'reuse'"
        return ""

    def check(self) -> None:
        for key, default in (("threshold", 0.5), ("probs", "marginal")):
            if getattr(self, key) is None and not self.lacks(key):
                object.__setattr__(self, key, default)

    @property
    def papers(self) -> tuple[str, ...]:
        own = (self.paper,)
        if self.redraw == "fresh":
            return own
        return (*own, _SJD_PLUS if self.redraw == "reuse" else _SCD)

    @property
    def keeps_drafts(self) -> bool:
        """Whether its redraw needs the old drafts and their probs."""
        return self.redraw in ("maximal", "reuse")

    def is_exact(self, levels: int) -> bool:
        return self.probs != "published" or levels == 1  # a window of one draft keeps none

    @property
    def draws_afresh(self) -> bool:
        return self.redraw == "fresh"

    def check_tree(self, policy: TreePolicy) -> None:
        if policy.fixed is None:
            problem = (
                f"drafter {self.kind!r} keeps a window: use a fixed tree, such as 'chain', not "
                f"{policy.kind!r}"
            )
            raise ConfigError(("tree", "policy"), problem)
        tree, sampled = policy.fixed
        if (0,) * len(tree.levels) not in tree.paths:
            problem = (
                f"drafter {self.kind!r} keeps the first path, which must be as long as any, as in "
                "'branching'"
            )
            raise ConfigError(("tree", "policy"), problem)
        if not sampled:
            problem = f"drafter {self.kind!r} keeps the tokens that it sampled: use 'sampled'"
            raise ConfigError(("tree", "children"), problem)


@POLICIES.register
@dataclass(frozen=True, slots=True)
class Window(TreePolicy):
    """A Jacobi window whose new positions are filled by the drafter, after the drafts that the
    window has. From the next pass on, the target's probs redraw them. `redraw` is that of `jacobi`.
    """

    kind: ClassVar[str] = "window"
    short: ClassVar[str] = "win"
    summary: ClassVar[str] = "a Jacobi window of {length} drafts, the new ones the drafter's"
    implementation: ClassVar[str] = "workers.decoding.drafted_window:DraftedWindow"
    adapts_to_rule: ClassVar[bool] = True
    length: Annotated[int, "number of drafted tokens", Range(1, 256), Symbol("")]
    redraw: Annotated[
        Literal["coupled", "maximal", "fresh"],
        "how drafts behind a rejection are replaced",
        Abbreviations(coupled="cpl", maximal="max"),
    ] = "coupled"

    @property
    def bounds(self) -> TreeBounds:
        return TreeBounds(self.length, self.length, 1)

    @property
    def is_sampled(self) -> bool:
        return True

    @property
    def parts(self) -> tuple[Jacobi, Chain]:
        """The window as a drafter of its own, and its tree."""
        return Jacobi(redraw=self.redraw), Chain(self.length)


_ROWS_BATCH = "workers.decoding.rows:RowsBatch"
_Lag = Annotated[
    int, "tokens of an image row after which the next row begins", Range(1), Symbol("w")
]


@DRAFTERS.register
@dataclass(frozen=True, slots=True)
class Rows(DrafterChoice):
    """Nothing is drafted, and several rows of the image are decoded at once (ZipAR): a pass samples
    one token of each row that has begun. A row begins when the row above it has `lag` tokens.
    """

    kind: ClassVar[str] = "rows"
    summary: ClassVar[str] = (
        "several rows of the image are decoded at once, each {lag} tokens behind the row above it"
    )
    paper: ClassVar[str] = "ZipAR (arXiv:2412.04062)"
    implementation: ClassVar[str] = ""
    batch_class: ClassVar[str] = _ROWS_BATCH
    has_weights: ClassVar[bool] = False
    has_drafts: ClassVar[bool] = False
    lag: _Lag = 8

    @property
    def row_lag(self) -> int:
        return self.lag


@DRAFTERS.register
@dataclass(frozen=True, slots=True)
class JacobiRows(Jacobi):
    """Several rows of the image are decoded at once, each by a Jacobi window (PJD). A row begins
    when the row above it has `lag` tokens, and never overtakes it.

    `lower` says what a row below the uppermost one emits after its accepted drafts: a token, so
    that a row follows the target's probs in its context (`corrected`), or nothing, as published: a
    rejected draft is sampled anew and tested again (`redrawn`). The `probs` `published` are PJD's
    under `reuse`: the old probs where a draft stays.
    """

    kind: ClassVar[str] = "jacobi_rows"
    short: ClassVar[str] = "jacrows"
    summary: ClassVar[str] = (
        "a Jacobi window in each of several rows, each {lag} tokens behind the row above it"
    )
    paper: ClassVar[str] = "PJD (arXiv:2606.05703)"
    implementation: ClassVar[str] = "workers.decoding.jacobi_rows:RowWindows"
    batch_class: ClassVar[str] = _ROWS_BATCH
    keeps_window: ClassVar[bool] = False
    leading: ClassVar[tuple[str, ...]] = ("lag", "redraw", "probs", "lower")
    lag: _Lag = 8
    lower: Annotated[
        Literal["corrected", "redrawn"],
        "what follows the accepted drafts of a lower row",
        Abbreviations(redrawn="red"),
    ] = "corrected"

    def check_tree(self, policy: TreePolicy) -> None:
        if not isinstance(policy, Chain):
            problem = (
                f"drafter {self.kind!r} keeps a window in each row: use 'chain', not "
                f"{policy.kind!r}"
            )
            raise ConfigError(("tree", "policy"), problem)
        super(JacobiRows, self).check_tree(policy)

    @property
    def row_lag(self) -> int:
        return self.lag


@DRAFTERS.register
@dataclass(frozen=True, slots=True)
class Vertical(DrafterChoice):
    """Nothing is drafted, and a pass samples one diagonal of the image (FlashAR). A trained branch
    of the target predicts the token below a cell, as its own head predicts the one to the right,
    and a gate mixes the two predictions of a token: by a trained network (`learned`), by one
    trained number (`scalar`), or equally (`half`).
    """

    kind: ClassVar[str] = "vertical"
    summary: ClassVar[str] = (
        "a pass samples one diagonal of the image, each token by what its left and its upper "
        "neighbour predict"
    )
    paper: ClassVar[str] = "FlashAR (arXiv:2605.09430)"
    implementation: ClassVar[str] = "workers.drafters.vertical:VerticalHead"
    batch_class: ClassVar[str] = "workers.decoding.diagonals:DiagonalBatch"
    has_drafts: ClassVar[bool] = False
    gate: Annotated[
        Literal["learned", "scalar", "half"], "weight of what the left neighbour predicts"
    ] = "learned"

    @property
    def row_lag(self) -> int:
        return 1

    def keeps_context(self, cols: int | None) -> bool:
        return False  # another model than the target predicts the tokens
