"""Acceptance rules: neighbourhood x schedule x modulation x resampling x verification. Each
published rule is one point of the product.

A child x at depth i of a node is accepted with probability f(x) = min(1, omega_i S_r(x) / p(x)),
where a modulation may change omega_i and the bound of S from node to node.
After a rejection the next child is verified against the residual, or a token is sampled from it.
Everything here is a deterministic function of tensors (shapes as in `neighbourhoods`); the caller
supplies the random numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from search_spaces.modulations import NO_MODULATION, Modulation, Nodes
from search_spaces.neighbourhoods import (
    Additive,
    CodebookNeighbourhood,
    Multiplicative,
    Neighbourhood,
    NeighbourhoodMass,
    NeighbourTables,
    NoNeighbourhood,
    exact_residual,
    gather_probs,
)
from search_spaces.params import Abbreviations, ConfigError, Params
from search_spaces.rules.grouped import Grouped
from search_spaces.schedules import Constant, Exponential, Schedule
from search_spaces.verification import TOKEN, Verification

if TYPE_CHECKING:
    from torch import Tensor

_GREEDY_MARGIN = 1e-6  # distance of omega to 1: more than rounding in fp32 takes away
Resampling = Literal["paper", "optimal"]


class Relaxation(NamedTuple):
    """How much the tests of B nodes are relaxed."""

    omega: Tensor  # [B] the relaxation budgets
    tables: NeighbourTables  # what the neighbourhood reads, with the nodes' factors

    def select(self, rows: Tensor) -> Relaxation:
        """Those of the nodes at indices [n]."""
        factor = self.tables.factor
        if isinstance(factor, float):
            return Relaxation(self.omega.index_select(0, rows), self.tables)
        tables = replace(self.tables, factor=factor.index_select(0, rows))
        return Relaxation(self.omega.index_select(0, rows), tables)


@dataclass(frozen=True, slots=True)
class AcceptanceRule(Params):
    """When a drafted token is accepted, and what replaces a rejected one."""

    neighbourhood: Neighbourhood = field(default_factory=NoNeighbourhood)
    schedule: Schedule = field(default_factory=Constant)
    # 'optimal' samples from norm([r - p f]_+), which has the least bias (Cool-SD, Theorem 2);
    # 'paper' follows the neighbourhood's own paper. Without neighbours the two are the same, and it
    # is 'paper'.
    resampling: Annotated[
        Resampling, "distribution sampled from after a rejection", Abbreviations(optimal="opt")
    ] = "paper"
    verification: Verification = TOKEN  # mappings leave the default out
    modulation: Modulation = NO_MODULATION  # mappings leave the default out

    def check(self) -> None:
        if self.verification.reads_later_drafts and not (
            self.neighbourhood.exact and self.schedule.exact
        ):
            problem = (
                f"{self.verification.kind!r} is defined for the exact rule alone; remove the "
                f"neighbourhood and the schedule's budget, or use {TOKEN.kind!r}"
            )
            raise ConfigError(("verification",), problem)
        # equal settings are equal
        if self.neighbourhood.exact and self._resamples_alike:
            object.__setattr__(self, "resampling", "paper")

    def to_mapping(self) -> dict[str, Any]:
        """The kinds under their tags, and the fields of all parts in one mapping."""
        parts: dict[str, Params] = {"neighbourhood": self.neighbourhood, "schedule": self.schedule}
        if self.modulation != NO_MODULATION:
            parts["modulation"] = self.modulation
        if self.verification != TOKEN:
            parts["verification"] = self.verification
        mapping: dict[str, Any] = {}
        for tag, part in parts.items():
            mapping |= {tag: part.kind, **part.to_mapping()}
        return mapping | {"resampling": self.resampling}

    @property
    def relaxed_parts(self) -> list[Params]:
        """The parts that differ from the exact rule's."""
        pairs: list[tuple[Params, Params]] = [
            (self.neighbourhood, EXACT.neighbourhood),
            (self.schedule, EXACT.schedule),
            (self.modulation, EXACT.modulation),
            (self.verification, EXACT.verification),
        ]
        return [part for part, exact in pairs if part != exact]

    @property
    def is_relaxed(self) -> bool:
        """False iff the rule is exact: no neighbours, a budget of 1 at every position, and an exact
        verification.
        """
        return not self.is_exact(temperature=1.0)

    def is_exact(self, temperature: float) -> bool:
        """Whether tokens follow the target's own distribution at this temperature (at 0: are its
        argmax).
        """
        # Each verified draft is compared with the argmax, whatever the verification of chains.
        if temperature == 0:
            verifies_all = not self.verification.implementation
            return (
                self.neighbourhood.at_temperature_zero.exact
                and self.schedule.exact
                and verifies_all
            )
        return self.neighbourhood.exact and self.schedule.exact and self.verification.exact

    def is_lossless(self, temperature: float, levels: int) -> bool:
        """Whether tokens follow the target's distribution in trees of at most so many levels: like
        `is_exact`, and also for rules that accept less often than the exact one.

        A draft tested against omega q with omega <= 1 is accepted less often, and the optimal
        residual makes up for it. In a tree of one level there are no other drafts that a
        verification could read.
        """
        if self.is_exact(temperature):
            return True
        most = self.schedule.largest(levels)
        verification = self.verification
        if temperature == 0:
            # omega q(x) is compared with the other tokens' q in fp32: an omega near 1 would accept
            # one of equal tokens.
            is_stricter = self.schedule.exact or most <= 1 - _GREEDY_MARGIN
            return (
                is_stricter
                and self.neighbourhood.at_temperature_zero.exact
                and not verification.implementation
            )
        verifies = verification.exact or (levels == 1 and not verification.implementation)
        is_stricter = self.schedule.exact or (most <= 1 and self._has_optimal_residual)
        return self.neighbourhood.exact and is_stricter and verifies

    def relaxes(self, temperature: float, levels: int) -> bool:
        """Whether drafts in trees of at most so many levels may be accepted more often than by the
        exact rule, which is what a modulation changes.
        """
        neighbourhood = self.neighbourhood
        if temperature == 0:
            neighbourhood = neighbourhood.at_temperature_zero
        return not neighbourhood.exact or self.schedule.largest(levels) > 1

    @property
    def _resamples_alike(self) -> bool:
        """Whether 'paper' and 'optimal' are the same if the neighbourhood is exact."""
        own = (Neighbourhood.paper_residual, CodebookNeighbourhood.paper_residual)
        return type(self.neighbourhood).paper_residual in own

    @property
    def _has_optimal_residual(self) -> bool:
        """Whether a rejection leaves norm([r - p f]_+) if the neighbourhood is exact."""
        return self.resampling == "optimal" or self._resamples_alike

    @property
    def work(self) -> tuple[str | Params, ...]:
        """What its cost depends on: the neighbourhood's `work`, or all of it if the residual sums
        every token's mass; then the modulation's kind and the verification's `work`, if they are
        not the default.
        """
        is_cheap = self.resampling == "paper" or (
            self.neighbourhood.never_stricter and self.schedule.at_least_one
        )
        work: list[str | Params] = [self.neighbourhood.work if is_cheap else self.neighbourhood]
        if self.modulation != NO_MODULATION:
            work.append(self.modulation.kind)
        if self.verification != TOKEN:
            work.append(self.verification.work)
        return tuple(work)

    def relaxation(self, omega: Tensor, nodes: Nodes, tables: NeighbourTables) -> Relaxation:
        """How much the tests at nodes are relaxed, from the schedule's budgets `omega` [B]: the
        budgets become 1 + m (omega - 1) where they are over 1, m the modulation's factors.
        """
        if self.modulation == NO_MODULATION:
            return Relaxation(omega, tables)
        factor = self.modulation.factor(nodes)
        budget = omega.clamp_max(1) + factor * (omega - 1).clamp_min(0)
        return Relaxation(budget, replace(tables, factor=factor[:, None]))

    def ratio(self, mass: NeighbourhoodMass, omega: Tensor) -> Tensor:
        """omega S / p [B], for budgets omega [B]; 0 where p(x) = 0."""
        return (omega * mass.target / mass.proposal).masked_fill(mass.proposal.logical_not(), 0)

    def acceptance_prob(self, mass: NeighbourhoodMass, omega: Tensor) -> Tensor:
        """f [B] = min(1, omega S / p), for budgets omega [B]; 0 where p(x) = 0."""
        return self.ratio(mass, omega).clamp_max(1)

    def residual(
        self,
        r: Tensor,
        p: Tensor | None,
        x: Tensor,
        omega: Tensor,
        mass: NeighbourhoodMass,
        tables: NeighbourTables,
    ) -> Tensor:
        """The residual [B, V] after child x [B] was rejected, normalised over the vocabulary.

        A row may have no mass left: under 'paper' by the rule, otherwise only by rounding (r = p: a
        rejection has probability 0). Then the exact rule's residual [r - p]_+ replaces the paper's.
        (For a budget below 1 the optimal residual differs from it, but needs the neighbourhood mass
        of every token.) If that is empty as well, r is returned unchanged. Neither has mass where r
        has none. The papers' own formulas may have some for omega < 1: they count S for x even if
        r(x) = 0, and then S may exceed p(x). No paper combines the two.
        """
        paper = None
        if self.resampling == "paper":
            paper = self.neighbourhood.paper_residual(r, p, x, mass)
        if paper is not None:
            fallback = r
            if self.neighbourhood.never_stricter:  # else the paper's residual is [r - p]_+ already
                fallback = _normalised(exact_residual(r, p, x), otherwise=r)
            return _normalised(paper, otherwise=fallback)
        if self.neighbourhood.never_stricter and self.schedule.at_least_one:
            # f is 1 where r > p, and p f >= r elsewhere, so [r - p f]_+ = [r - p]_+ (Proposition 1)
            optimal = exact_residual(r, p, x)
        elif p is None:  # p f is zero except at x
            at_x = (gather_probs(r, x) - self.acceptance_prob(mass, omega)).clamp_min(0)
            optimal = r.scatter(1, x[:, None], at_x[:, None])
        else:
            target, proposal = self.neighbourhood.all_masses(r, p, tables)
            share = (p / proposal).masked_fill(proposal <= 0, 0)  # 1 without groups
            # p f as min(p, ...): a product p * f would round where f is r / p
            optimal = (r - p.minimum(omega[:, None] * target * share)).clamp_min(0)
        return _normalised(optimal, otherwise=r)

    def greedy(self, q: Tensor, x: Tensor, omega: Tensor, tables: NeighbourTables) -> Tensor:
        """Whether x [B] is accepted at temperature 0: bool [B]. q [B, V] are the target's probs at
        temperature 1, without top-k and top-p.

        x is accepted iff omega S_q(x) >= max q(y) over all y outside its admitted neighbours
        (LANTERN's greedy form; omega is this project's extension). The exact rule accepts only the
        target's argmax, the first of equal tokens.
        """
        if self.is_exact(temperature=0.0):
            return x == q.argmax(1)
        mass = self.neighbourhood.at_temperature_zero.mass(q, None, x, tables)
        rivals = mass.without_neighbours(q).scatter(1, x[:, None], 0)
        return omega * mass.target >= rivals.amax(1)


def _normalised(probs: Tensor, otherwise: Tensor) -> Tensor:
    """Probs [B, V] scaled to sum to 1; rows without mass are taken from `otherwise`."""
    mass = probs.sum(1, keepdim=True)
    # A mass that is not a number takes `otherwise` too.
    return (probs / mass).where(mass > 0, otherwise)


EXACT = AcceptanceRule()

RULES: Mapping[str, AcceptanceRule] = MappingProxyType(
    {
        "exact": EXACT,
        "uniform": AcceptanceRule(schedule=Constant(budget=1.1)),
        "cool": AcceptanceRule(schedule=Exponential(budget=1.1, nu=0.1)),
        "lantern": AcceptanceRule(Additive(k=100, delta=0.1)),
        "lantern_pp": AcceptanceRule(Multiplicative(k=10, lam=2.0)),
        "grouped": AcceptanceRule(Grouped()),
    }
)
