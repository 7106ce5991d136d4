"""Samplers: how a sweep's search proposes configs. They name Optuna samplers without importing Optuna.

A plugin adds one with `@SAMPLERS.register`; its class may be any `optuna.samplers.BaseSampler` that takes `seed`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from search_spaces.plugins import Registry


class SamplerChoice:
    """A sampler by name.

    implementation: "module:Class" of the Optuna sampler. defaults: its arguments where `search.options` gives none.
    stateful: it keeps more than the finished trials (a generation, the position in a sequence), so a resumed search
    must ask it for every trial again. max_seed: the largest seed that the class takes.
    """

    kind: ClassVar[str]
    implementation: ClassVar[str]
    defaults: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    stateful: ClassVar[bool] = False
    max_seed: ClassVar[int] = 2**32 - 1


SAMPLERS: Registry[type[SamplerChoice]] = Registry("sampler")

# GP and QMC draw the parameters of single branches at random, and would warn of it in every trial.
_NO_WARNING = MappingProxyType({"warn_independent_sampling": False})


@SAMPLERS.register
class TPE(SamplerChoice):
    kind = "tpe"
    implementation = "orchestrator.run.study:ParameterTPESampler"
    defaults = MappingProxyType({"multivariate": True, "group": True})


@SAMPLERS.register
class NSGA2(SamplerChoice):
    kind = "nsga2"
    implementation = "optuna.samplers:NSGAIISampler"
    stateful = True


@SAMPLERS.register
class NSGA3(SamplerChoice):
    kind = "nsga3"
    implementation = "optuna.samplers:NSGAIIISampler"
    stateful = True


@SAMPLERS.register
class GP(SamplerChoice):
    kind = "gp"
    implementation = "optuna.samplers:GPSampler"
    defaults = _NO_WARNING


@SAMPLERS.register
class Random(SamplerChoice):
    kind = "random"
    implementation = "optuna.samplers:RandomSampler"


@SAMPLERS.register
class QMC(SamplerChoice):
    kind = "qmc"
    implementation = "optuna.samplers:QMCSampler"
    defaults = _NO_WARNING
    stateful = True
    max_seed = 2**31 - 1


@SAMPLERS.register
class Grid(SamplerChoice):
    """All points of the space in order. The sampler itself is never asked: the search sets every parameter."""

    kind = "grid"
    implementation = "optuna.samplers:RandomSampler"
