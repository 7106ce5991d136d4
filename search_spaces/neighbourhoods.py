"""Neighbourhoods: how much of the target's mass an acceptance rule counts for a drafted token.

Shapes: B rows, V tokens, K neighbours; r [B, V] is the residual of the target's probs at a node (q
itself before any sibling was rejected), p [B, V] the probs that child x [B] was sampled from, or
None if it was not sampled (a point mass at x: its probability is 1). Everything here uses tensors'
methods only and never reads a value back to the host.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, get_args

from search_spaces.params import (
    Abbreviations,
    Key,
    Params,
    Range,
    Symbol,
    class_error,
    class_errors,
)
from search_spaces.plugins import Registry

if TYPE_CHECKING:
    from torch import Tensor

Proximity = Literal["l2", "cosine", "random"]
_ProximityField = Annotated[
    Proximity, "what makes codes neighbours; random is a control", Abbreviations(cosine="cos")
]
_Size = Annotated[
    int, "neighbourhood size, the token itself included; 1 is exact", Range(1), Symbol("k")
]
CHUNK = 1 << 22  # elements of the largest temporary that `all_masses` makes


@dataclass(frozen=True, slots=True, eq=False)
class NeighbourTables:
    """Lookup tables of neighbourhoods."""

    # [V, >= k], int32 or int64: row x starts with x itself, then the others by increasing distance.
    neighbours: Tensor | None = None
    # [V, d] the codebook as it is decoded (l2-normalised where the codec normalises).
    codebook: Tensor | None = None
    # [B, V], int32 or int64: the tokens of every row of r, least likely first, ties by index, if it
    # is known.
    ranking: Tensor | None = None
    # [B, 1] what the bound of a neighbourhood is multiplied by in each row (see `modulations`).
    factor: Tensor | float = 1.0


class NeighbourhoodMass(NamedTuple):
    """The mass that a neighbourhood counts for the drafted tokens x [B]."""

    target: Tensor  # [B] S_r(x)
    # [B] the denominator: p(x), or p's mass on x's group for grouped rules; 0 where p(x) is 0.
    proposal: Tensor
    members: Tensor | None = None  # [B, K] the candidate neighbours without x itself
    admitted: Tensor | None = None  # [B, K] which of the candidates are counted

    def without_neighbours(self, probs: Tensor) -> Tensor:
        """The probs [B, V] with the admitted neighbours' entries set to 0."""
        if self.members is None or self.admitted is None:
            return probs
        return probs.scatter(
            1, self.members, probs.gather(1, self.members).masked_fill(self.admitted, 0)
        )


class NeededCodes(NamedTuple):
    """The codes that a rule needs at least, for messages such as "100 neighbours"."""

    key: str  # key of a config that asks for them
    noun: str  # what is counted
    number: int


class FusedBound(NamedTuple):
    """How an accelerator's kernel decides which of the k - 1 neighbours count, for classes that
    define `admits` in this way, or whether a draft is accepted, for a `ThresholdTest`.
    """

    # "tvd" or "jsd" (see `Additive`); "multiplicative", if the neighbours' mass is below `bound`
    # times the token's own; "typical" (see `rules.typical`), where `bound` is epsilon; "fuzzy_tvd",
    # "fuzzy_kl", "fuzzy_reverse_kl" or "fuzzy_jsd" (see `rules.fuzzy`), where it is the distance.
    test: str
    k: int  # 1 in a threshold test
    bound: float
    scale: float = 0.0  # delta of "typical"


class Neighbourhood(Params, ABC):
    """The mass S_r(x) of a drafted token: `mass` for one token per row, `all_masses` for the whole
    vocabulary.
    """

    __slots__ = ()
    # S_r(x) >= r(x) and the denominator is p(x), so that with a relaxation budget omega >= 1 (see
    # `schedules`) no token is accepted less often than by the exact rule.
    never_stricter: ClassVar[bool] = True
    reads_codebook: ClassVar[bool] = False  # `NeighbourTables.codebook` is needed
    reads_ranking: ClassVar[bool] = False  # `NeighbourTables.ranking` saves time
    # Whether p must be given: drafts are then sampled, not the drafter's top tokens.
    needs_sampled: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        with class_errors(type(self), "exact, table_key or needed_codes"):
            # Any, because a plugin's class may return values of other types.
            facts: Any = self.exact, self.table_key, self.needed_codes
        exact, key, _ = facts
        if not isinstance(exact, bool):
            raise class_error(type(self), f"exact must be True or False, got {exact!r}")
        if key is not None and not (
            isinstance(key, tuple) and key[0] in get_args(Proximity) and key[1] > 0
        ):
            raise class_error(type(self), f"table_key must be None or (proximity, k), got {key!r}")

    @property
    @abstractmethod
    def exact(self) -> bool:
        """True if S_r(x) = r(x) always."""

    @property
    def table_key(self) -> tuple[Proximity, int] | None:
        """(proximity, k) of the neighbour table that is needed, if any."""
        return None

    @property
    def needed_codes(self) -> NeededCodes | None:
        """The codes that the rule needs, if it reads more than the token's own."""
        if self.table_key:
            return NeededCodes("k", "neighbours", self.table_key[1])
        return None

    @property
    def fused(self) -> FusedBound | None:
        """How the kernel of accelerators does what this class defines; None if it cannot. It is not
        inherited: a subclass that the kernel can run defines it again. The kernel runs all rules
        that are `exact`.
        """
        return None

    @property
    def work(self) -> str | Neighbourhood:
        """What the cost of a decoding step depends on: the kind alone, if its numbers do not change
        the cost.
        """
        return self.kind

    @property
    def at_temperature_zero(self) -> Neighbourhood:
        """The neighbourhood for greedy decoding."""
        return self

    @abstractmethod
    def mass(
        self, r: Tensor, p: Tensor | None, x: Tensor, tables: NeighbourTables
    ) -> NeighbourhoodMass:
        """The mass of tokens x [B]."""

    @abstractmethod
    def all_masses(
        self, r: Tensor, p: Tensor | None, tables: NeighbourTables
    ) -> tuple[Tensor, Tensor]:
        """(target, proposal), both [B, V]: `mass` for every token at once, in chunks of bounded
        memory.
        """

    def paper_residual(
        self, r: Tensor, p: Tensor | None, x: Tensor, mass: NeighbourhoodMass
    ) -> Tensor | None:
        """The paper's residual [B, V] after rejecting x, not normalised; None: the optimal one."""
        return None


NEIGHBOURHOODS: Registry[type[Neighbourhood]] = Registry("neighbourhood", "search_spaces.rules")


@NEIGHBOURHOODS.register
@dataclass(frozen=True, slots=True)
class NoNeighbourhood(Neighbourhood):
    """S = r: every token counts for itself (Leviathan et al.; Cool-SD)."""

    kind: ClassVar[str] = "none"
    summary: ClassVar[str] = "each code counts for itself"

    @property
    def exact(self) -> bool:
        return True

    def mass(
        self, r: Tensor, p: Tensor | None, x: Tensor, tables: NeighbourTables
    ) -> NeighbourhoodMass:
        target = gather_probs(r, x)
        return NeighbourhoodMass(
            target, target.new_ones(target.shape) if p is None else gather_probs(p, x)
        )

    def all_masses(
        self, r: Tensor, p: Tensor | None, tables: NeighbourTables
    ) -> tuple[Tensor, Tensor]:
        return r, r.new_ones(r.shape) if p is None else p


NO_NEIGHBOURHOOD = NoNeighbourhood()


class ThresholdTest(Neighbourhood):
    """A test without a random number: S_r(x) is p(x) where it accepts x, and 0 elsewhere. After a
    rejection a token is sampled from r itself. A budget above 1 changes nothing. At temperature 0
    the rule is the exact one.
    """

    __slots__ = ()
    never_stricter: ClassVar[bool] = False

    @abstractmethod
    def accepts(self, r: Tensor, p: Tensor | None, factor: Tensor | float) -> Tensor:
        """Which tokens are accepted: bool [B, V], or [B, 1] if that does not depend on the token.

        `factor` [B, 1] says how much more each row is relaxed; at 0 nothing is accepted, or only
        what the exact rule always accepts.
        """

    @property
    def exact(self) -> bool:
        return False

    @property
    def at_temperature_zero(self) -> Neighbourhood:
        return NO_NEIGHBOURHOOD

    def mass(
        self, r: Tensor, p: Tensor | None, x: Tensor, tables: NeighbourTables
    ) -> NeighbourhoodMass:
        accepted = gather_probs(self.accepts(r, p, tables.factor).expand(r.shape), x)
        proposal = r.new_ones(r.shape[0]) if p is None else gather_probs(p, x)
        return NeighbourhoodMass(proposal * accepted, proposal)

    def all_masses(
        self, r: Tensor, p: Tensor | None, tables: NeighbourTables
    ) -> tuple[Tensor, Tensor]:
        proposal = r.new_ones(r.shape) if p is None else p
        return proposal * self.accepts(r, p, tables.factor), proposal

    def paper_residual(
        self, r: Tensor, p: Tensor | None, x: Tensor, mass: NeighbourhoodMass
    ) -> Tensor | None:
        """r: the target's own probs, whatever was rejected."""
        return r


class CodebookNeighbourhood(Neighbourhood):
    """S_r(x) = r(x) + C: neighbours in the codebook are added, nearest first, while their sum C is
    admissible.
    """

    __slots__ = ()
    k: int
    proximity: Proximity

    @abstractmethod
    def admits(self, moved: Tensor, own: Tensor, factor: Tensor | float) -> Tensor:
        """Which neighbours may be counted, given the running sums C = `moved` [..., K], r(x) =
        `own` [..., 1], and the `factor` [..., 1] of the bound.

        True up to the first of the K neighbours whose C exceeds the bound, and False from there on.
        """

    @property
    def table_key(self) -> tuple[Proximity, int] | None:
        if self.exact:
            return None
        return (self.proximity, self.k)

    def mass(
        self, r: Tensor, p: Tensor | None, x: Tensor, tables: NeighbourTables
    ) -> NeighbourhoodMass:
        plain = NO_NEIGHBOURHOOD.mass(r, p, x, tables)
        if self.exact:
            return plain
        members = self._columns(tables)[x].long()
        added, admitted = self._sum(plain.target[:, None], r.gather(1, members), tables.factor)
        return NeighbourhoodMass(plain.target + added, plain.proposal, members, admitted)

    def all_masses(
        self, r: Tensor, p: Tensor | None, tables: NeighbourTables
    ) -> tuple[Tensor, Tensor]:
        target, proposal = NO_NEIGHBOURHOOD.all_masses(r, p, tables)
        if self.exact:
            return target, proposal
        columns = self._columns(tables)
        factor = tables.factor
        if not isinstance(factor, float):
            factor = factor[..., None]
        target = r.clone()
        for part in chunks(r.shape[1], r.shape[0] * columns.shape[1]):
            members = columns[part]
            masses = r.index_select(1, members.flatten()).view(r.shape[0], *members.shape)
            target[:, part] += self._sum(r[:, part, None], masses, factor)[0]
        return target, proposal

    def paper_residual(
        self, r: Tensor, p: Tensor | None, x: Tensor, mass: NeighbourhoodMass
    ) -> Tensor | None:
        """[r_A - p]_+ (LANTERN, LANTERN++), where A is x and its admitted neighbours, and r_A is S
        at x, 0 on the rest of A and r elsewhere.

        S at x includes neighbours' mass, so x may be sampled again even if r(x) = 0, as in the
        papers.
        """
        if mass.members is None:
            return None
        stripped = mass.without_neighbours(r)
        if p is None:  # S - 1 <= 0: nothing is left at x
            return stripped.scatter(1, x[:, None], 0)
        return (stripped.scatter(1, x[:, None], mass.target[:, None]) - p).clamp_min(0)

    def _columns(self, tables: NeighbourTables) -> Tensor:
        """The k - 1 nearest neighbours of each token, without the token itself: [V, k - 1]."""
        assert tables.neighbours is not None, "the rule needs a neighbour table"
        assert tables.neighbours.shape[1] >= self.k, "the neighbour table has fewer than k columns"
        return tables.neighbours[:, 1 : self.k]

    def _sum(self, own: Tensor, masses: Tensor, factor: Tensor | float) -> tuple[Tensor, Tensor]:
        """Counted mass C [...] and the admitted neighbours [..., K], given the neighbours' masses
        [..., K], nearest first.
        """
        running = masses.cumsum(-1)
        admitted = self.admits(running, own, factor)
        # C is taken from the cumsum that `admits` tested: summing again could exceed the bound by
        # rounding.
        return (running * admitted).amax(-1), admitted


@NEIGHBOURHOODS.register
@dataclass(frozen=True, slots=True)
class Additive(CodebookNeighbourhood):
    """LANTERN: C may grow as long as the distance D(C) between r and r with C moved onto x is less
    than delta.

    With tvd, D(C) = C. With jsd, it is the Jensen-Shannon divergence in nats, D(C) = 1/2 [C ln 2 +
    r_x ln(r_x / m) + (r_x + C) ln((r_x + C) / m)], m = r_x + C / 2, which grows with C as well.
    """

    kind: ClassVar[str] = "additive"
    short: ClassVar[str] = "add"
    summary: ClassVar[str] = (
        "the {k} codes most similar to a draft count for it, as long as they add less than {delta}"
    )
    paper: ClassVar[str] = "LANTERN (arXiv:2410.03355)"
    k: _Size
    delta: Annotated[
        float,
        "bound on the distance by which the target's probs may move; 0 is exact",
        Range(0, 1),
        Symbol("d"),
    ]
    divergence: Annotated[Literal["tvd", "jsd"], "distance that delta bounds"] = "tvd"
    proximity: _ProximityField = "l2"

    @property
    def exact(self) -> bool:
        return self.k == 1 or self.delta == 0

    @property
    def fused(self) -> FusedBound:
        return FusedBound(self.divergence, self.k, self.delta)

    def admits(self, moved: Tensor, own: Tensor, factor: Tensor | float) -> Tensor:
        bound = self.delta * factor
        if self.divergence == "tvd":
            return moved < bound
        # Rounding may lower the divergence where neighbours have almost no mass; cummax keeps it
        # monotone.
        return _jensen_shannon(moved, own).cummax(-1).values < bound


@NEIGHBOURHOODS.register
@dataclass(frozen=True, slots=True)
class Multiplicative(CodebookNeighbourhood):
    """LANTERN++: the whole set's mass stays below lambda r(x), that is C < (lambda - 1) r(x)."""

    kind: ClassVar[str] = "multiplicative"
    short: ClassVar[str] = "mul"
    summary: ClassVar[str] = (
        "the {k} codes most similar to a draft count for it, up to {lambda} times its own "
        "probability"
    )
    paper: ClassVar[str] = "LANTERN++ (arXiv:2502.06352)"
    k: _Size
    lam: Annotated[
        float,
        "bound on the set's mass as a multiple of the token's own; 1 is exact",
        Range(1),
        Key("lambda"),
        Symbol("l"),
    ]
    proximity: _ProximityField = "l2"

    @property
    def exact(self) -> bool:
        return self.k == 1 or self.lam == 1

    @property
    def fused(self) -> FusedBound:
        return FusedBound("multiplicative", self.k, self.lam - 1)

    def admits(self, moved: Tensor, own: Tensor, factor: Tensor | float) -> Tensor:
        return moved < (self.lam - 1) * factor * own


def gather_probs(probs: Tensor, x: Tensor) -> Tensor:
    """probs[b, x[b]] for each row b: [B]."""
    return probs.gather(1, x[:, None])[:, 0]


def exact_residual(r: Tensor, p: Tensor | None, x: Tensor) -> Tensor:
    """[r - p]_+ [B, V], not normalised; without p, r with 0 at x."""
    if p is None:
        return r.scatter(1, x[:, None], 0)
    return (r - p).clamp_min(0)


def chunks(total: int, weight: int) -> Iterator[slice]:
    """Consecutive slices of range(total), each of at most CHUNK elements if an item has `weight`
    elements.
    """
    step = max(1, CHUNK // max(1, weight))
    yield from (slice(start, min(start + step, total)) for start in range(0, total, step))


def _jensen_shannon(moved: Tensor, own: Tensor) -> Tensor:
    """D(C) in nats for C = `moved` [..., K], r_x = `own` [..., 1]; C ln 2 where r_x is 0.

    For small C both logarithms have the form log(1 + small), so log1p keeps the relative precision
    of C.
    """
    tiny = 2.0**-120
    half = moved / 2
    outward = own * (half / own.clamp_min(tiny)).log1p()
    inward = (own + moved) * (half / (own + half).clamp_min(tiny)).log1p()
    return (moved * math.log(2) - outward + inward) / 2
