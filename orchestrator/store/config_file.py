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
    """A speed-up that a sweep measured. digest: of the config. speedup: with its standard error, as
    text. batch and device: those of the timings.
    """

    sweep: str
    trial: int
    digest: str
    speedup: str
    batch: int
    device: str

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
        other = f"; not of this run: {' and '.join(differences)} (--against vanilla measures it)"
        return text + (other if differences else "")

    def differences(
        self, digest: str, batch: int, devices: Sequence[str], files: Collection[str] = ()
    ) -> list[str]:
        """Why it is not the speed-up of a run with this config, batch and device. devices: the
        names of that one, as a timing session has it first. files: of the models, by key, whose
        contents are not those of the sweep.
        """
        found = ["its config was changed"] if digest != self.digest else []
        found += (
            [f"{', '.join(files)} differ{'s' * (len(files) == 1)} from the sweep's"]
            if files
            else []
        )
        found += [f"its batch is {batch}"] if batch != self.batch else []
        is_other = self.device not in devices and _LABEL.match(self.device) is None
        return found + ([f"its device is {devices[0]}"] if is_other else [])


@dataclass(frozen=True, slots=True)
class Setting:
    """A config to generate with, as a mapping, and where it is from.

    origin: the trial, in words. models: as --models takes them. batch: at which the sweep timed it.
    speed: what was measured. comments: at the head of its file. weights: content hashes of the
    sweep's models. baseline: vanilla with the sweep's sampling. notes: on the sweep.
    """

    mapping: Mapping[str, Any]
    origin: str = ""
    models: str = BUILTIN
    batch: int | None = None
    speed: MeasuredSpeed | None = None
    comments: str = ""
    weights: Mapping[str, str] | None = None
    baseline: DecodingConfig | None = None
    notes: tuple[str, ...] = ()

    def comments_for(self, digest: str) -> str:
        """The comments, if they are about the config with this digest."""
        return self.comments if self.speed is not None and self.speed.digest == digest else ""

    def differing_files(self, hashes: Mapping[str, str]) -> list[str]:
        """Keys of the models whose contents are not those of the sweep's, and which of them are
        missing. hashes: of the models that are used.
        """
        weights = hashes if self.weights is None else self.weights
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
    its plugins, and the config's digest. heading: what the trial was chosen for. remarks: the
    metrics, each with what follows its value, such as `+2.3 ± 5.9 % against vanilla`, or "".
    """
    speed = MeasuredSpeed.of(identity, record)
    lines = [f"{heading}: " * bool(heading) + f"trial {record.number} of {identity.name}"]
    lines += (
        [f"{SPEEDUP} {speed.speedup} at batch {speed.batch} on {speed.device}"] if speed else []
    )
    for name, remark in (remarks or {}).items():
        if name != SPEEDUP and name in record.metrics:
            lines.append(f"{name} {record.metrics[name]}" + (f", {remark}" if remark else ""))
    lines += [f"plugin {module}" for module in record.config.plugins] if record.config else []
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
