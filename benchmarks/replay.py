"""How well replay predicts: mean accepted lengths from one recording of the exact rule, against
each setting's own run.

    python -m benchmarks.replay [--images 24] [--settings 24] [--set KEY=VALUE ...]
    python -m benchmarks.replay --memory
    python -m benchmarks.replay --from SWEEP

Random settings of the quick start's space with dynamic trees added, on the built-in model, one
thread. Both sides use the same captions and random numbers. Prints a line per setting, the
quantiles of the errors, and the seconds of both sides.

With --memory, the bytes of a recorded step, on the built-in model and, with its rows of
probabilities as much longer, for a codebook of 16,384.

With --from, the trials of a sweep of the built-in model are predicted from its first captions, and
corrected each by the others (leave one out). Prints the share within 3 % before and after, by kind
of setting, and how each predicted measure of quality ranks the trials' drift and fid (Spearman).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import islice

import numpy as np
from scipy.stats import spearmanr

from orchestrator.replay.predict import measured_trials, random_settings
from orchestrator.store.files import read_sweep_text
from orchestrator.store.names import describe
from orchestrator.store.records import TrialRecord
from orchestrator.store.sweep import Sweep
from search_spaces.acceptance import EXACT
from search_spaces.drafters import Eagle
from search_spaces.sweep import SweepConfig
from search_spaces.trees import Chain, Dynamic
from search_spaces.trial import DecodingConfig, Sampling, parse_assignments
from workers.data.captions import read_captions
from workers.decoding.state import Request
from workers.loading.models import Capabilities
from workers.loading.models_yaml import load_folder
from workers.metrics.estimate import Estimate
from workers.replay.correction import Correction, Observation
from workers.replay.prediction import MEASURES, Prediction
from workers.replay.recording import StepRecorder
from workers.replay.replayer import Replayer
from workers.runtime.process import use_threads

CHAIN = {"policy": "chain", "length": {"low": 2, "high": 5}}
DYNAMIC = {
    "policy": "dynamic",
    "depth": {"low": 2, "high": 4},
    "width": {"low": 2, "high": 3},
    "nodes": 8,
}
WITHIN, LARGE_CODEBOOK = 0.03, 16_384


@dataclass(frozen=True)
class Row:
    """A setting: predicted and measured tokens per pass, and the seconds that each took."""

    config: DecodingConfig
    predicted: Estimate
    measured: float
    predict_s: float
    run_s: float

    @property
    def error(self) -> float:
        """Relative."""
        return self.predicted.value / self.measured - 1


def read_space(assignments: Sequence[str]) -> SweepConfig:
    """The part of the quick start's space that drafts by EAGLE, with more chains, and with dynamic
    trees.
    """
    quickstart = SweepConfig.read("quickstart")
    eagle = quickstart.to_mapping()["space"][0]
    _, static = eagle["tree"]
    sweep = SweepConfig.from_mapping(
        quickstart.to_mapping() | {"space": eagle | {"tree": [CHAIN, static, DYNAMIC]}}
    )
    return SweepConfig.parse(sweep.to_yaml(), "quickstart", parse_assignments(assignments))


def compare(sweep: SweepConfig, images: int, count: int) -> tuple[list[Row], float]:
    """Rows for `count` random settings, and the seconds of all recordings."""
    models = load_folder()
    requests = [
        Request(c.id, c.text) for c in read_captions(**sweep.captions.to_mapping())[:images]
    ]
    configs = dict(islice(random_settings(sweep), count))
    replayer = Replayer(models, requests, seed=sweep.seed)
    start = time.perf_counter()
    replayer.record(configs)
    recording_s = time.perf_counter() - start
    rows = []
    for config in configs:
        start = time.perf_counter()
        predicted = replayer.predict(config).mean_accepted_length
        middle = time.perf_counter()
        statistics = [result.statistics for result in replayer.engine(config, images).run(requests)]
        measured = sum(int(s.emitted.sum()) for s in statistics) / sum(s.passes for s in statistics)
        rows.append(Row(config, predicted, measured, middle - start, time.perf_counter() - middle))
    return rows, recording_s


@dataclass(frozen=True)
class TrialRow:
    """A trial: its prediction, what it measured, and log measured - log predicted after correction
    by the others.
    """

    config: DecodingConfig
    prediction: Prediction
    record: TrialRecord
    corrected: float

    @property
    def error(self) -> float:
        """Relative, before correction."""
        length = self.record.metrics["mean_accepted_length"].value
        return self.prediction.mean_accepted_length.value / length - 1


def compare_trials(location: str, images: int) -> list[TrialRow]:
    """Rows for the trials of a sweep that replay can describe."""
    trials, models = Sweep.open(location), load_folder()
    text = read_sweep_text(trials.storage)
    sweep = SweepConfig.parse(text, location)
    requests = [
        Request(c.id, c.text) for c in read_captions(**sweep.captions.to_mapping())[:images]
    ]
    replayer = Replayer(models, requests, seed=sweep.seed)
    measured = dict(measured_trials(trials, models, Capabilities.of(models)))
    replayer.record(measured)
    observations = [Observation(c, replayer.predict(c), length) for c, length in measured.items()]
    correction = Correction.fit(observations)
    records = {record.config: record for record in trials.records}
    return [
        TrialRow(o.config, o.prediction, records[o.config], float(left_out))
        for o, left_out in zip(observations, correction.left_out, strict=True)
    ]


def print_trials(rows: Sequence[TrialRow]) -> None:
    kinds: dict[str, list[TrialRow]] = {"all": list(rows)}
    for row in rows:
        kinds.setdefault(f"{row.config.drafter.kind} {row.config.policy.kind}", []).append(row)
    print(
        f"{'kind':<24} {'trials':>6} {'within 3 %':>11} {'corrected':>10} {'median':>7} "
        f"{'corrected':>10}"
    )
    for kind, members in kinds.items():
        before = np.abs([row.error for row in members])
        after = np.abs(np.expm1([row.corrected for row in members]))
        shares = [f"{100 * np.mean(errors <= WITHIN):.0f} %" for errors in (before, after)]
        medians = [f"{100 * np.median(errors):.1f} %" for errors in (before, after)]
        print(
            f"{kind:<24} {len(members):>6} {shares[0]:>11} {shares[1]:>10} {medians[0]:>7} "
            f"{medians[1]:>10}"
        )
    for metric in ("drift", "fid"):
        own = [row for row in rows if metric in row.record.metrics]
        values = [row.record.metrics[metric].value for row in own]
        for measure in MEASURES if len(own) > 2 else ():
            costs = [row.prediction.values[measure].value for row in own]
            print(
                f"Spearman of {measure} with {metric}: {spearmanr(costs, values).statistic:.3f} "
                f"({len(own)} trials)"
            )


def print_memory() -> None:
    models = load_folder()
    requests = [Request(c.id, c.text) for c in read_captions("scenes", count=2, seed=1)]
    codes = models.target.vocab_size
    for policy in (Chain(5), Dynamic(5, 10, 58)):  # EAGLE-2's own size
        config = DecodingConfig(Eagle(), policy, EXACT, Sampling())
        recorder = StepRecorder(Sampling(), models.target.codebook, 0.2)
        list(Replayer(models, requests).engine(config, 2, recorder).run(requests))
        steps = recorder.steps()
        columns = {field.name: getattr(steps, field.name) for field in fields(steps)}
        sizes = {
            name: column.nbytes / len(steps)
            for name, column in columns.items()
            if column is not None
        }
        rows = sizes["target"] + sizes.get("proposal", 0.0)
        large = rows * LARGE_CODEBOOK / codes + sum(sizes.values()) - rows
        small, large = (size / 2**20 for size in (sum(sizes.values()), large))
        print(
            f"{policy.kind} of {policy.bounds.nodes} nodes, {steps.inner.shape[1]} with children: "
            f"{small:.2f} MiB at {codes} codes, {large:.2f} MiB at {LARGE_CODEBOOK}"
        )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=24)
    parser.add_argument("--settings", type=int, default=24)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--from", dest="sweep", metavar="SWEEP")
    parser.add_argument("--memory", action="store_true")
    options = parser.parse_args(arguments)
    use_threads(1)
    if options.memory:
        print_memory()
        return
    if options.sweep is not None:
        print_trials(compare_trials(options.sweep, options.images))
        return
    rows, recording_s = compare(read_space(options.set), options.images, options.settings)
    print(f"{'predicted':>15} {'measured':>9} {'error':>7}  setting")
    for row in rows:
        value = f"{row.predicted.value:.3f} ± {row.predicted.error:.3f}"
        print(f"{value:>15} {row.measured:9.3f} {100 * row.error:+6.1f}%  {describe(row.config)}")
    errors = np.abs([row.error for row in rows])
    median, ninety = np.quantile(errors, [0.5, 0.9])
    print(
        f"within {100 * WITHIN:.0f} %: {100 * np.mean(errors <= WITHIN):.0f} % of {len(rows)} "
        f"settings; median error {100 * median:.1f} %, nine in ten within {100 * ninety:.1f} %"
    )
    ratio = sum(row.run_s for row in rows) / sum(row.predict_s for row in rows)
    print(
        f"recording {recording_s:.0f} s; a prediction is {ratio:.0f} times as fast as a run of "
        f"{options.images} images"
    )


if __name__ == "__main__":
    main()
