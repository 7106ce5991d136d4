"""Errors of differences between a sweep's trials: what pairing gains, and whether stated intervals
cover.

    python -m benchmarks.errors [sweeps/quickstart] [--trials 16] [--sizes 24 48 96]
        [--divisions 10]

Reads images' features and counts from the sweep's shards; nothing is generated.

1. Pairing: the paired error of a difference over the independent one, over all pairs of trials.
   Beside it, the paired error that would remain with a control variate: a regression on vanilla's
   metrics, if those were known exactly.
2. Coverage: the captions are divided at random into parts of n, again and again. The difference of
   two trials on one part and its stated 95 % interval are compared with the mean difference over
   the k others. That mean is the truth at n images but for an error of its own, for which the
   interval is widened by sqrt(1 + 1 / k).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from orchestrator.front.joint import JointErrors, critical_t
from orchestrator.front.pareto import Floats
from orchestrator.store.files import read_sweep_yaml
from orchestrator.store.records import TrialRecord
from orchestrator.store.sweep import Sweep
from workers.data.captions import read_captions
from workers.data.records import FEATURES as FEATURES_PREFIX
from workers.data.records import read_shard
from workers.data.reference import read_reference
from workers.metrics.definition import FEATURES, Metric
from workers.metrics.estimate import BLOCKS
from workers.metrics.metric import POSITION, MetricInputs, ReferenceFeatures, Rows
from workers.metrics.registry import compute_metrics
from workers.runtime.process import use_threads
from workers.runtime.shard_tables import ShardReader

METRICS = ("fid", "drift", "mean_accepted_length")
SCORES = ("clip_score", "caption_accuracy")  # further regressors of control variates
SPREAD = (0, 0.25, 0.5, 0.75, 1)  # quantiles over pairs


@dataclass(frozen=True)
class Images:
    """The first image of each caption by several trials, in one order of captions; vanilla is the
    first trial.
    """

    trials: Sequence[Rows]
    reference: ReferenceFeatures

    @property
    def captions(self) -> int:
        return self.trials[0].count

    def joint(self, captions: Tensor, metrics: Sequence[str] = METRICS) -> JointErrors:
        """The trials' metrics on some captions [n] (indices), which are divided into blocks in this
        order.
        """
        position = torch.arange(len(captions))
        parts = [
            Rows({name: column[captions] for name, column in rows.items()} | {POSITION: position})
            for rows in self.trials
        ]
        records = []
        for part in parts:
            inputs = MetricInputs(
                images=part, baseline=parts[0], references={FEATURES: self.reference}
            )
            estimates, _ = compute_metrics(inputs, metrics)
            records.append(TrialRecord(0, "", "complete", None, metrics=estimates))
        return JointErrors.of(records, [Metric(name, "minimize") for name in metrics])


def read_images(location: str, count: int) -> Images:
    """Vanilla and other finished trials of a sweep, evenly chosen, without repeated ones."""
    sweep = Sweep.open(location)
    vanilla = sweep.baseline
    if vanilla is None:
        raise SystemExit(f"{location}: vanilla has not finished")
    others = [
        r
        for r in sweep.records
        if r.state == "complete" and r.duplicate_of is None and r is not vanilla
    ]
    chosen = np.unique(
        np.linspace(0, len(others) - 1, min(count - 1, len(others))).round().astype(int)
    )
    captions = read_captions(**read_sweep_yaml(sweep.storage)["captions"])
    table, _ = read_shard(sweep.storage, vanilla.image_shards[0])
    extractor = next(name for name in table.column_names if name.startswith(FEATURES_PREFIX))
    positions = {caption.id: position for position, caption in enumerate(captions)}
    reader = ShardReader(
        sweep.storage, {FEATURES: extractor.removeprefix(FEATURES_PREFIX)}, SCORES, positions
    )
    trials = []
    for record in [vanilla, *(others[index] for index in chosen)]:
        rows = Rows.merge(reader.images(record.image_shards))
        first = rows["sample"] == 0
        trials.append(Rows({name: column[first] for name, column in rows.items()}))
    return Images(trials, ReferenceFeatures(read_reference(sweep.storage).features[0]))


def pairs(joint: JointErrors) -> list[tuple[int, int]]:
    return list(combinations(range(len(joint.values)), 2))


def independent_errors(joint: JointErrors) -> Floats:
    """The errors [pairs, m] of differences, as if trials shared nothing."""
    variances = np.diag(joint.covariance()).reshape(joint.values.shape)
    return np.sqrt([variances[a] + variances[b] for a, b in pairs(joint)])


def remaining(effects: Floats, regressors: Floats) -> Floats:
    """The share [n] of the errors with these effects [n, G] that a regression on others [p, G]
    leaves.

    Adjusted for the p coefficients that are fitted to G blocks.
    """
    basis = np.linalg.qr(regressors.T)[0]
    left = 1 - np.square(effects @ basis).sum(axis=1) / np.square(effects).sum(axis=1)
    blocks = effects.shape[1]
    shares: Floats = np.sqrt(np.clip(left * (blocks - 1) / (blocks - 1 - len(regressors)), 0, 1))
    return shares


def show_pairing(images: Images) -> None:
    joint = images.joint(torch.arange(images.captions), METRICS + SCORES)
    independent = independent_errors(joint)
    paired = np.array([joint.difference(a, b)[1] for a, b in pairs(joint)])
    print(f"{len(joint.values)} trials, {images.captions} captions, {len(paired)} pairs")
    print(f"{'':44} {'min':>6} {'25 %':>6} {'50 %':>6} {'75 %':>6} {'max':>6}")
    for column, name in enumerate(METRICS):
        used = paired[:, column] > 0
        show(f"{name}: paired / independent", paired[used, column] / independent[used, column])
    effects = joint.effects[:, 0]
    differences = np.array([effects[a] - effects[b] for a, b in pairs(joint)])
    vanilla = joint.effects[0]
    for words, regressors in (("fid", vanilla[:1]), ("fid and scores", vanilla[[0, 3, 4]])):
        show(f"fid of a trial, given vanilla's {words}", remaining(effects[1:], regressors))
        show(f"fid difference, given vanilla's {words}", remaining(differences, regressors))


def show(words: str, values: Floats) -> None:
    print(f"{words:44} " + " ".join(f"{value:6.2f}" for value in np.quantile(values, SPREAD)))


def deviations(
    images: Images, size: int, divisions: int
) -> Iterator[tuple[Floats, Floats, Floats]]:
    """For each part of each division, [pairs, m] each: the difference minus its mean over the other
    parts, and its paired and its independent error, all for an interval that is not widened.
    """
    generator = torch.Generator().manual_seed(0)
    for _ in range(divisions):
        order = torch.randperm(images.captions, generator=generator)
        joints = [images.joint(part) for part in torch.split(order, size) if len(part) == size]
        found = [[joint.difference(a, b) for a, b in pairs(joint)] for joint in joints]
        values = np.array([[difference for difference, _, _ in part] for part in found])
        for index, joint in enumerate(joints):
            off = values[index] - np.delete(values, index, axis=0).mean(axis=0)
            errors = np.array([error for _, error, _ in found[index]])
            yield off / np.sqrt(1 + 1 / (len(joints) - 1)), errors, independent_errors(joint)


def show_coverage(images: Images, sizes: Sequence[int], divisions: int) -> None:
    print(
        "\nstated 95 % intervals of differences that cover, in %: of all pairs, and of the pair "
        "with the least;"
    )
    print("spread / error: of the differences, over the error that they state; the median pair")
    print(
        f"{'images':>6} {'metric':22} {'paired':>7} {'least':>7} {'independent':>12} "
        f"{'spread / error':>15}"
    )
    for size in (size for size in sizes if 2 * size <= images.captions):
        off, paired, independent = (
            np.array(part) for part in zip(*deviations(images, size, divisions), strict=True)
        )
        critical = critical_t(np.array([min(BLOCKS, size) - 1.0]))[0]
        for column, name in enumerate(METRICS):
            used = off[..., column].any(axis=0)  # but for pairs with the same images
            z, error = np.abs(off[:, used, column]), paired[:, used, column]
            covers = (z <= critical * error).mean(axis=0)
            alone = (z <= critical * independent[:, used, column]).mean()
            spread = np.median(np.sqrt(np.square(z).mean(axis=0) / np.square(error).mean(axis=0)))
            shares = f"{100 * covers.mean():7.1f} {100 * covers.min():7.1f} {100 * alone:12.1f}"
            print(f"{size:6} {name:22} {shares} {spread:15.2f}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sweep", nargs="?", default="sweeps/quickstart")
    parser.add_argument(
        "--trials", type=int, default=16, help="at most so many, vanilla among them"
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=[24, 48, 96])
    parser.add_argument("--divisions", type=int, default=10)
    options = parser.parse_args(arguments)
    use_threads(1)
    images = read_images(options.sweep, options.trials)
    show_pairing(images)
    show_coverage(images, options.sizes, options.divisions)


if __name__ == "__main__":
    main()
