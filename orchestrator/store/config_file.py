"""A trial's config as a YAML file for `generate --config`. Comments at its head say which trial of
which sweep it is from, and the speed-up and quality that were measured there.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Self

from orchestrator.text import clean
from search_spaces.documents import write_document
from search_spaces.params import ConfigError
from search_spaces.plugins import plugin_modules
from search_spaces.sweep_sections import BUILTIN

if TYPE_CHECKING:
    from orchestrator.store.identity import Identity
    from orchestrator.store.records import TrialRecord
    from search_spaces.trial import DecodingConfig

SPEEDUP = "speedup"
_TRIAL = re.compile(r"(?:.*: )?trial (\d+) of (.+)")
_SPEED = re.compile(rf"{SPEEDUP} (.+) at batch (\d+) on (.+)")
_CONFIG = re.compile(r"config ([0-9a-f]+)")
_LABEL = re.compile(r"[^=, ]+=")  # of a node, in the place of a device


@dataclass(frozen=True, slots=True)
class MeasuredSpeed:
    """A speed-up that a sweep measured."""

    sweep: str
    trial: int
    digest: str  # of the config
    speedup: str  # with its standard error
    batch: int  # of the timings
    device: str  # of the timings

    @classmethod
    def of(cls, identity: Identity, record: TrialRecord) -> Self | None:
        """The speed-up of a sweep's trial; None if it was not measured."""
        entry = record.metrics.get(SPEEDUP)
        if entry is None:
            return None
        device = identity.timing_device or "an unknown device"
        return cls(
            identity.name, record.number, record.digest, str(entry), identity.timing_batch, device
        )

    @classmethod
    def read(cls, text: str) -> Self | None:
        """The speed-up that the comments at the head of a config file state; None if they state
        none.
        """
        comments = [line[1:].strip() for line in head_comments(text).splitlines()]
        found = [
            next(filter(None, map(part.fullmatch, comments)), None)
            for part in (_TRIAL, _SPEED, _CONFIG)
        ]
        trial, speed, config = found
        if trial is None or speed is None or config is None:
            return None
        return cls(trial[2], int(trial[1]), config[1], speed[1], int(speed[2]), speed[3])

    def describe(self, differences: Sequence[str] = ()) -> str:
        """The speed-up in one sentence. differences: why it is not that of another run."""
        text = (
            f"speed-up in {self.sweep}, trial {self.trial}: {self.speedup} at batch {self.batch} "
            f"on {self.device}"
        )
        if differences:
            text += f"; not of this run: {' and '.join(differences)}"
            text += " (--against vanilla measures it)"
        return text

    def differences(
        self, digest: str, batch: int, devices: Sequence[str], files: Collection[str] = ()
    ) -> list[str]:
        """Why it is not the speed-up of a run with this config, batch and device.

        Args:
            digest: of the run's config.
            batch: of the run.
            devices: names of the run's device, the one of timing sessions first.
            files: keys of the model files whose contents are not those of the sweep.
        """
        found = []
        if digest != self.digest:
            found.append("its config was changed")
        if files:
            verb = "differs" if len(files) == 1 else "differ"
            found.append(f"{', '.join(files)} {verb} from the sweep's")
        if batch != self.batch:
            found.append(f"its batch is {batch}")
        if self.device not in devices and _LABEL.match(self.device) is None:
            found.append(f"its device is {devices[0]}")
        return found


@dataclass(frozen=True, slots=True)
class Setting:
    """A config to generate with, and where it is from."""

    mapping: Mapping[str, Any]  # the config
    origin: str = ""  # the trial, in words
    models: str = BUILTIN  # as --models takes them
    batch: int | None = None  # at which the sweep timed it
    speed: MeasuredSpeed | None = None  # as the sweep measured it
    comments: str = ""  # at the head of its file
    weights: Mapping[str, str] | None = None  # content hashes of the sweep's models
    baseline: DecodingConfig | None = None  # vanilla with the sweep's sampling
    notes: tuple[str, ...] = ()  # on the sweep

    def comments_for(self, digest: str) -> str:
        """The comments, if they are about the config with this digest."""
        return self.comments if self.speed is not None and self.speed.digest == digest else ""

    def differing_files(self, hashes: Mapping[str, str]) -> list[str]:
        """Keys of the models whose contents are not those of the sweep's, and which of them are
        missing. hashes: of the models that are used.
        """
        weights = self.weights
        if weights is None:
            return []
        found = sorted(
            key for key in weights.keys() | hashes.keys() if weights.get(key) != hashes.get(key)
        )
        return [key if key in hashes else f"{key} (missing)" for key in found]


def head_comments(text: str) -> str:
    """The lines of comments at the head of a YAML text."""
    return "".join(takewhile(lambda line: line.startswith("#"), text.splitlines(keepends=True)))


@contextmanager
def naming_plugins(text: str) -> Iterator[None]:
    """Add to a ConfigError that is raised inside the plugins that the comments at the head of a
    config file name, if they are not loaded.
    """
    try:
        yield
    except ConfigError as error:
        missing = {*re.findall(r"^# plugin (\S+)$", head_comments(text), re.MULTILINE)} - {
            *plugin_modules()
        }
        if not missing:
            raise
        options = (word for module in sorted(missing) for word in ("--plugin", module))
        command = shlex.join(["specfrontier", *options, "generate"])
        problem = f"{error.problem}; the file's comments name its plugin: {command}"
        raise ConfigError(error.path, problem, error.location) from error


def config_header(
    identity: Identity,
    record: TrialRecord,
    heading: str = "",
    remarks: Mapping[str, str] | None = None,
) -> str:
    """The comments at the head of a trial's config file: the trial, the speed-up, other metrics,
    its plugins, and the config's digest.

    Args:
        identity: of the trial's sweep.
        record: of the trial.
        heading: what the trial was chosen for.
        remarks: the metrics, each with what follows its value, such as `+2.3 ± 5.9 % against
            vanilla`, or "".
    """
    speed = MeasuredSpeed.of(identity, record)
    lines = [f"{heading}: " * bool(heading) + f"trial {record.number} of {identity.name}"]
    if speed is not None:
        lines.append(f"{SPEEDUP} {speed.speedup} at batch {speed.batch} on {speed.device}")
    for name, remark in (remarks or {}).items():
        if name != SPEEDUP and name in record.metrics:
            line = f"{name} {record.metrics[name]}"
            lines.append(f"{line}, {remark}" if remark else line)
    if record.config is not None:
        lines += [f"plugin {module}" for module in record.config.plugins]
    lines.append(f"config {record.digest}")
    return "".join(f"# {clean(line)}\n" for line in lines)


def trial_text(identity: Identity, record: TrialRecord) -> str:
    """The config file of a sweep's trial, with the sweep's objectives in its comments; the config
    of a trial with an invalid one is empty.
    """
    header = config_header(
        identity, record, remarks={metric.name: "" for metric in identity.objectives}
    )
    config = record.config.to_mapping() if record.config else {}
    return header + write_document(config, is_compact=False)
