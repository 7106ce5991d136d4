"""Drafters: what proposes the tokens that the target verifies. Their models are in `workers.drafters`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from search_spaces.params import Abbreviations, ConfigError, Params
from search_spaces.plugins import Registry
from search_spaces.trees import Chain, TreePolicy


class DrafterChoice(Params):
    """The model, or the procedure, that proposes tokens.

    implementation: "module:Class" of a `workers.decoding.drafter.Drafter`, or without weights of a
    `workers.decoding.drafting.Drafting`; imported when it is needed. Empty if nothing is drafted.
    has_weights: a target needs a weight file for it.
    keeps_window: without weights, it keeps a chain of sampled drafts from pass to pass, so replay records windows of
    several lengths (see `workers.replay.windows`). Replay cannot describe other drafters without weights.
    """

    __slots__ = ()
    implementation: ClassVar[str]
    has_weights: ClassVar[bool] = True
    keeps_window: ClassVar[bool] = False

    def check_tree(self, policy: TreePolicy) -> None:
        """Raise ConfigError, with the key in a config, if the drafter cannot serve the policy."""


DRAFTERS: Registry[type[DrafterChoice]] = Registry("drafter", "workers.drafters")


@DRAFTERS.register
@dataclass(frozen=True, slots=True)
class NoDrafter(DrafterChoice):
    """Plain autoregressive decoding."""

    kind: ClassVar[str] = "none"
    implementation: ClassVar[str] = ""
    has_weights: ClassVar[bool] = False


@DRAFTERS.register
@dataclass(frozen=True, slots=True)
class Eagle(DrafterChoice):
    """One decoder layer on the target's features (EAGLE)."""

    kind: ClassVar[str] = "eagle"
    implementation: ClassVar[str] = "workers.drafters.eagle:EagleDrafter"


@DRAFTERS.register
@dataclass(frozen=True, slots=True)
class Eagle3(DrafterChoice):
    """One decoder layer on hidden states from three depths of the target, with a head of its own (EAGLE-3)."""

    kind: ClassVar[str] = "eagle3"
    implementation: ClassVar[str] = "workers.drafters.eagle3:Eagle3Drafter"


@DRAFTERS.register
@dataclass(frozen=True, slots=True)
class Medusa(DrafterChoice):
    """Heads on the target's last feature, one per level (Medusa)."""

    kind: ClassVar[str] = "medusa"
    implementation: ClassVar[str] = "workers.drafters.medusa:MedusaDrafter"


@DRAFTERS.register
@dataclass(frozen=True, slots=True)
class Independent(DrafterChoice):
    """A small autoregressive model with the target's codebook (Leviathan et al.)."""

    kind: ClassVar[str] = "independent"
    short: ClassVar[str] = "indep"
    implementation: ClassVar[str] = "workers.drafters.independent:IndependentDrafter"


@DRAFTERS.register
@dataclass(frozen=True, slots=True)
class Jacobi(DrafterChoice):
    """No drafter model: drafts are sampled from the target's own probs of the last pass, whose context was partly wrong
    (speculative Jacobi decoding, SJD).

    initialisation: how a position without probs is filled; such a token counts as a point mass. redraw: after a
    rejection, the drafts behind it are sampled again with fresh random numbers, or with the random numbers of their
    position (coupled), so that a token stays the same where its probs did not change.
    """

    kind: ClassVar[str] = "jacobi"
    implementation: ClassVar[str] = "workers.decoding.jacobi:JacobiWindow"
    has_weights: ClassVar[bool] = False
    keeps_window: ClassVar[bool] = True
    initialisation: Annotated[
        Literal["random", "repeat_left", "sample_left"], "initialisation of a position that has no probs yet"
    ] = "random"
    redraw: Annotated[
        Literal["fresh", "coupled"], "random numbers for drafts that are sampled again", Abbreviations(coupled="cpl")
    ] = "fresh"

    def check_tree(self, policy: TreePolicy) -> None:
        if not isinstance(policy, Chain):
            problem = f"drafter {self.kind!r} keeps a window: use 'chain', not {policy.kind!r}"
            raise ConfigError(("tree", "policy"), problem)
        if policy.children == "top":
            problem = f"drafter {self.kind!r} keeps the tokens that it sampled: use 'sampled'"
            raise ConfigError(("tree", "children"), problem)
