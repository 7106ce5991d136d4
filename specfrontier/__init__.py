"""specfrontier in Python: query a sweep's front, choose a setting, and decode with it.

    import specfrontier

    sweep = specfrontier.Sweep.open("sweeps/quickstart")
    best = sweep.best("fid <= 1.2 * vanilla")
    engine = specfrontier.load_engine(best)
    engine.draw(["a large red circle"])[0].image

Names are imported when they are used: opening a sweep needs no torch.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from workers.runtime.process import use_threads

if TYPE_CHECKING:
    from orchestrator.errors import CommandError, QueryError
    from orchestrator.front.choice import Choice
    from orchestrator.front.trial import Trial
    from orchestrator.images import DrawnImage, ImageEngine
    from orchestrator.remeasure import RemeasuredSpeed, remeasure_speedup
    from orchestrator.store.files import NoSweepError
    from search_spaces.params import ConfigError
    from search_spaces.presets import PRESETS
    from search_spaces.trial import DecodingConfig
    from specfrontier.images import load_engine
    from specfrontier.sweep import Sweep

_HOMES = {
    "Sweep": "specfrontier.sweep",
    "Trial": "orchestrator.front.trial",
    "Choice": "orchestrator.front.choice",
    "load_engine": "specfrontier.images",
    "ImageEngine": "orchestrator.images",
    "DrawnImage": "orchestrator.images",
    "RemeasuredSpeed": "orchestrator.remeasure",
    "remeasure_speedup": "orchestrator.remeasure",
    "DecodingConfig": "search_spaces.trial",
    "PRESETS": "search_spaces.presets",
    "ConfigError": "search_spaces.params",
    "QueryError": "orchestrator.errors",
    "NoSweepError": "orchestrator.store.files",
    "CommandError": "orchestrator.errors",
}
_WITH_TORCH = ("specfrontier.images", "orchestrator.images", "orchestrator.remeasure")
__all__ = [
    "PRESETS",
    "Choice",
    "CommandError",
    "ConfigError",
    "DecodingConfig",
    "DrawnImage",
    "ImageEngine",
    "NoSweepError",
    "QueryError",
    "RemeasuredSpeed",
    "Sweep",
    "Trial",
    "load_engine",
    "remeasure_speedup",
]


def __getattr__(name: str) -> object:
    if name in _HOMES:
        if _HOMES[name] in _WITH_TORCH and "torch" not in sys.modules:
            use_threads()  # before torch is imported, because it reads the number then
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
