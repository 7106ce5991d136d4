"""Samplers: how a sweep's search proposes configs. They name Optuna samplers without importing
Optuna.

A plugin adds one with `register_sampler`; its class may be any `optuna.samplers.BaseSampler` that
takes `seed`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from search_spaces.params import Params, Range
from search_spaces.plugins import Registry, caller_module


@dataclass(frozen=True, slots=True)
class SamplerChoice:
    """A sampler."""

    implementation: str  # "module:Class" of the Optuna sampler
    # Arguments of the class where `search.options` gives none.
    defaults: Mapping[str, Any] = field(default_factory=dict)
    # Whether it keeps more than the finished trials (a generation, the position in a sequence), so
    # that a resumed search must ask it for every trial again.
    stateful: bool = False
    max_seed: int = 2**32 - 1  # the largest seed that the class takes
    # Whether it chooses among settings that replay predicts while the first trials run (see
    # `PoolOptions`). Its class then also takes `pool`.
    from_pool: bool = False


@dataclass(frozen=True, slots=True)
class PoolOptions(Params):
    """The keys of `search.options` that say how the pool of such a sampler is made; the others are
    the sampler's.
    """

    pool: Annotated[int, "settings sampled from the space", Range(2, 1_000_000)] = 2000
    captions: Annotated[
        int, "images that are recorded for each drafter and kind of tree", Range(2, 1_000_000)
    ] = 24

    @classmethod
    def split(cls, options: Mapping[str, Any]) -> tuple[PoolOptions, dict[str, Any]]:
        """These options, and the rest. Raises ConfigError for an invalid one."""
        own = {key: value for key, value in options.items() if key in cls.fields()}
        return cls.from_mapping(own), {
            key: value for key, value in options.items() if key not in own
        }


SAMPLERS: Registry[SamplerChoice] = Registry("sampler", "orchestrator.run")
# All points of the space in order: the search sets every parameter and never asks the sampler.
GRID = "grid"


def register_sampler(
    name: str, implementation: str, defaults: Mapping[str, Any] | None = None, **options: Any
) -> None:
    """Add a sampler; see `SamplerChoice` for the arguments. Raises ConfigError if another module
    has registered the name.
    """
    choice = SamplerChoice(implementation, dict(defaults or {}), **options)
    SAMPLERS.add(name, choice, caller_module())


# GP and QMC sample the parameters of single branches at random, and would warn of it in each trial.
_NO_WARNING = {"warn_independent_sampling": False}

register_sampler(
    "tpe", "orchestrator.run.search:ParameterTPESampler", {"multivariate": True, "group": True}
)
register_sampler("nsga2", "optuna.samplers:NSGAIISampler", stateful=True)
register_sampler("nsga3", "optuna.samplers:NSGAIIISampler", stateful=True)
register_sampler("gp", "optuna.samplers:GPSampler", _NO_WARNING)
register_sampler("random", "optuna.samplers:RandomSampler")
register_sampler(
    "qmc", "optuna.samplers:QMCSampler", _NO_WARNING, stateful=True, max_seed=2**31 - 1
)
register_sampler(GRID, "optuna.samplers:RandomSampler")
register_sampler("replay", "orchestrator.replay.sampler:ReplaySampler", from_pool=True)
