"""From a config to the parts that carry it out: sampling, drafting and lookup tables."""

from __future__ import annotations

from search_spaces.neighbourhoods import NeighbourTables
from search_spaces.params import ConfigError
from search_spaces.plugins import load_object
from search_spaces.trial import DecodingConfig, DrafterChoice
from workers.decoding.drafter import Drafter
from workers.decoding.drafting import Drafting
from workers.decoding.neighbours import neighbour_table
from workers.models.target import Target


def drafter_class(choice: DrafterChoice | type[DrafterChoice]) -> type[Drafter] | None:
    """The class whose weights a drafter needs; None for drafters without weights."""
    implementation = load_object(choice.implementation) if choice.implementation else None
    return implementation if implementation is not None and issubclass(implementation, Drafter) else None


def resolve_for_target(config: DecodingConfig, target: Target, drafter: Drafter | None) -> DecodingConfig:
    """The config with the target's own sampling if it has none, checked against target and drafter.

    Raises:
        ConfigError: the target or the drafter cannot serve it.
        ValueError: the drafter is missing, or not the one that the config names.
    """
    config = config.with_sampling(config.sampling or target.sampling)
    config.check_model(target.vocab_size, image_tokens=target.grid.tokens)
    needs_weights, kind = drafter_class(config.drafter) is not None, config.drafter.kind
    if needs_weights != (drafter is not None):
        need = f"the {kind} drafter's weights" if needs_weights else "no drafter"
        raise ValueError(f"drafter: this config needs {need}, but {'one was' if drafter else 'none was'} given")
    if drafter is not None and drafter.kind != kind:
        raise ValueError(f"drafter: this config needs the {kind} drafter's weights, but {drafter.kind}'s were given")
    levels, max_levels = config.policy.bounds.depth, drafter.max_levels if drafter else None
    if max_levels is not None and levels > max_levels:
        raise ConfigError(
            ("tree",), f"{levels} levels are more than the {max_levels} that the {kind} drafter can draft"
        )
    return config


def build_drafting(config: DecodingConfig, target: Target, drafter: Drafter | None) -> Drafting:
    """The drafting of a resolved config: the drafter's own if it needs no weights, else the tree policy's."""
    choice = config.drafter if config.drafter.implementation and drafter is None else config.policy
    drafting: Drafting = load_object(choice.implementation)(config, target, drafter)
    return drafting


def build_tables(config: DecodingConfig, target: Target) -> NeighbourTables:
    """What the acceptance rule looks up: the neighbour table, or the codebook itself for groups."""
    key = config.acceptance.neighbourhood.table_key
    neighbours = neighbour_table(target.codebook, *key) if key else None
    codebook = target.codebook if config.acceptance.neighbourhood.reads_codebook else None
    return NeighbourTables(neighbours=neighbours, codebook=codebook)
