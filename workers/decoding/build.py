"""From a config to the parts that carry it out: drafters, sampling, drafting and lookup tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from search_spaces.drafters import DRAFTERS, DrafterChoice
from search_spaces.modulations import NO_MODULATION, Modulation, Nodes
from search_spaces.neighbourhoods import Neighbourhood, NeighbourTables, gather_probs
from search_spaces.params import ConfigError, class_error, class_errors
from search_spaces.plugins import PluginNames, is_external, load_object
from search_spaces.trial import DecodingConfig
from workers.decoding.drafter import TrainedPart
from workers.decoding.drafting import Drafting
from workers.decoding.neighbours import neighbour_table
from workers.models.checkpoint_files import WeightsError
from workers.models.target import Target


def drafter_class(choice: DrafterChoice | type[DrafterChoice]) -> type[TrainedPart] | None:
    """The class whose weights a drafter needs; None for drafters without weights."""
    if not choice.has_weights:
        return None
    implementation: type[TrainedPart] = load_object(choice.implementation)
    return implementation


def kinds_with_weights() -> PluginNames:
    """All drafters that have weight files."""
    DRAFTERS.load()
    return PluginNames(kind for kind, choice in DRAFTERS.items() if choice.has_weights)


def load_drafter(target: Target, kind: str, path: Path) -> TrainedPart:
    """A drafter of a kind from its file, ready to decode on the target's device in the target's
    dtype.

    Raises:
        WeightsError: the file is missing, damaged, of another kind, or made for another target.
        ValueError: its sizes do not fit the target; an unknown kind, or one without weights.
    """
    implementation = drafter_class(DRAFTERS.lookup(kind))
    if implementation is None:
        kinds = ", ".join(kinds_with_weights())
        raise ConfigError(
            ("drafter",), f"the {kind} drafter has no weights; drafters with weights: {kinds}"
        )
    if not path.exists():
        raise WeightsError(
            f"drafters.{kind}: {path}: no such file or folder; check the path, or remove the key"
        )
    return (
        implementation.load(path, target)
        .to(target.device, target.dtype)
        .eval()
        .requires_grad_(False)
    )


def resolve_for_target(
    config: DecodingConfig, target: Target, drafter: TrainedPart | None
) -> DecodingConfig:
    """The config with the target's own sampling if it has none, checked against target and drafter.

    Raises:
        ConfigError: the target or the drafter does not support it.
        ValueError: the drafter is missing, or not the one that the config names.
    """
    config = config.with_sampling(config.sampling or target.sampling)
    needs_weights = config.drafter.has_weights
    kind = config.drafter.kind
    if needs_weights != (drafter is not None):
        if needs_weights:
            problem = f"needs the {kind} drafter's weights, but none was given"
        else:
            problem = "needs no drafter, but one was given"
        raise ValueError(f"drafter: this config {problem}")
    if drafter is not None and drafter.kind != kind:
        raise ValueError(
            f"drafter: this config needs the {kind} drafter's weights, but {drafter.kind}'s were "
            "given"
        )
    levels = {kind: drafter.max_levels} if drafter else {}
    grid = target.grid
    config.check_model(
        target.vocab_size,
        image_tokens=grid.tokens,
        image_rows=grid.rows,
        has_preview=bool(grid.preview),
        drafters=levels,
    )
    return config


def build_drafting(
    config: DecodingConfig, target: Target, drafter: TrainedPart | None
) -> Drafting[Any]:
    """The drafting of a resolved config: the drafter's own if it needs no weights, else the tree
    policy's; inside of another one if some drafts are not verified.
    """
    implementation = config.policy.implementation
    if drafter is None and config.drafter.implementation:
        implementation = config.drafter.implementation
    drafting: Drafting[Any] = load_object(implementation)(config, target, drafter)
    around = config.acceptance.verification.implementation
    if around:
        drafting = load_object(around)(config, target, drafting)
    return drafting


def build_tables(config: DecodingConfig, target: Target) -> NeighbourTables:
    """What the acceptance rule looks up: the neighbour table, or the codebook itself for groups."""
    rule = config.acceptance
    neighbourhood = rule.neighbourhood
    key = neighbourhood.table_key
    tables = NeighbourTables(
        neighbours=neighbour_table(target.codebook, *key) if key else None,
        codebook=target.codebook if neighbourhood.reads_codebook else None,
    )
    if target.codebook.is_meta:
        return tables
    if is_external(type(neighbourhood).__module__):
        check_masses(neighbourhood, tables, target.codebook)
        if rule.modulation != NO_MODULATION:
            _check_unrelaxed(neighbourhood, tables, target.codebook)
    if is_external(type(rule.modulation).__module__):
        _check_factors(rule.modulation, target.codebook)
    return tables


def _check_factors(modulation: Modulation, codebook: Tensor) -> None:
    """Compare a plugin's factors with what they must be, on random probs in random rows.

    Raises:
        ConfigError: there is not one factor for each node, or one is negative or not finite.
    """
    r, _ = _random_probs(codebook)
    nodes = Nodes(r, torch.linspace(0, 1, len(r), device=codebook.device))
    with class_errors(type(modulation), "factor"):
        factor = modulation.factor(nodes)
        is_sound = factor.shape == nodes.row.shape and bool(
            (factor.isfinite() & (factor >= 0)).all()
        )
    if not is_sound:
        raise class_error(
            type(modulation),
            f"factor must return {len(r)} finite numbers of at least 0 for {len(r)} nodes, got "
            f"{factor.tolist()}",
        )


def _check_unrelaxed(
    neighbourhood: Neighbourhood, tables: NeighbourTables, codebook: Tensor
) -> None:
    """Check that a plugin's masses follow a modulation: at a factor of 0 nothing is relaxed.

    Raises:
        ConfigError: they do not read `NeighbourTables.factor`.
    """
    r, p = _random_probs(codebook)
    tables = replace(tables, factor=r.new_zeros(len(r), 1))
    with class_errors(type(neighbourhood), "all_masses"):
        target, proposal = neighbourhood.all_masses(r, p, tables)
        is_relaxed = bool((target * p > r * proposal * 1.001 + 1e-9).any())
    if is_relaxed:
        raise class_error(
            type(neighbourhood),
            "its masses do not follow a modulation; multiply what the rule relaxes by "
            "`tables.factor`, or remove acceptance.modulation",
        )


def _random_probs(codebook: Tensor) -> tuple[Tensor, Tensor]:
    """Random probs of a target and a drafter, both [16, V]."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.rand(2, 16, len(codebook), generator=generator) ** 8
    r, p = (weights / weights.sum(-1, keepdim=True)).to(codebook.device)
    return r, p


def check_masses(neighbourhood: Neighbourhood, tables: NeighbourTables, codebook: Tensor) -> None:
    """Compare a plugin's masses with what its class says of them, on random probs. What it says
    decides which configs are lossless.

    Raises:
        ConfigError: they contradict it; the file and the class are named.
    """
    made = type(neighbourhood)
    r, p = _random_probs(codebook)
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(len(codebook), (16,), generator=generator).to(codebook.device)
    with class_errors(made, "mass or all_masses"):
        mass = neighbourhood.mass(r, p, x, tables)
        everywhere = neighbourhood.all_masses(r, p, tables)
        all_masses = [gather_probs(values, x) for values in everywhere]
    plain = [gather_probs(probs, x) for probs in (r, p)]
    for name, found, values, own in zip(
        ("target", "proposal"), mass[:2], all_masses, plain, strict=True
    ):
        if found.shape != x.shape or not torch.allclose(found, values, rtol=1e-3):
            raise class_error(
                made, f"mass and all_masses differ in `{name}`; correct one of the two"
            )
        is_own = torch.allclose(found, own, rtol=1e-3)
        if neighbourhood.exact and not is_own:
            raise class_error(
                made,
                f"exact is True, but mass has a `{name}` that is not the token's own; correct one",
            )
        is_larger = name == "target" and bool((found >= own * 0.999).all())
        if neighbourhood.never_stricter and not (is_own or is_larger):
            raise class_error(
                made, "mass may be stricter than the exact rule; set never_stricter = False"
            )
