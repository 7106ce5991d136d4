"""Samplers: how a sweep's search proposes configs. They name Optuna samplers without importing Optuna.

A plugin adds one with `register_sampler`; its class may be any `optuna.samplers.BaseSampler` that takes `seed`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from search_spaces.plugins import Registry, caller_module


@dataclass(frozen=True, slots=True)
class SamplerChoice:
    """A sampler.

    implementation: "module:Class" of the Optuna sampler. defaults: its arguments where `search.options` gives none.
    stateful: it keeps more than the finished trials (a generation, the position in a sequence), so a resumed search
    must ask it for every trial again. max_seed: the largest seed that the class takes.
    """

    implementation: str
    defaults: Mapping[str, Any] = field(default_factory=dict)
    stateful: bool = False
    max_seed: int = 2**32 - 1


SAMPLERS: Registry[SamplerChoice] = Registry("sampler")
GRID = "grid"  # all points of the space in order: the search sets every parameter, and its sampler is never asked


def register_sampler(name: str, implementation: str, defaults: Mapping[str, Any] | None = None, **options: Any) -> None:
    """Add a sampler; see `SamplerChoice` for the arguments. ConfigError if another module has registered the name."""
    choice = SamplerChoice(implementation, dict(defaults or {}), **options)
    SAMPLERS.add(name, choice, caller_module())


# GP and QMC draw the parameters of single branches at random, and would warn of it in every trial.
_NO_WARNING = {"warn_independent_sampling": False}

register_sampler("tpe", "orchestrator.run.study:ParameterTPESampler", {"multivariate": True, "group": True})
register_sampler("nsga2", "optuna.samplers:NSGAIISampler", stateful=True)
register_sampler("nsga3", "optuna.samplers:NSGAIIISampler", stateful=True)
register_sampler("gp", "optuna.samplers:GPSampler", _NO_WARNING)
register_sampler("random", "optuna.samplers:RandomSampler")
register_sampler("qmc", "optuna.samplers:QMCSampler", _NO_WARNING, stateful=True, max_seed=2**31 - 1)
register_sampler(GRID, "optuna.samplers:RandomSampler")
