"""Speed: seconds from timing shards, and what decoding counted on its way, which no machine's mood can change."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from workers.metrics.estimate import Estimate, MetricUnavailable, grouped_mean, ratio_estimate
from workers.metrics.metric import TIMINGS, Metric, MetricInputs


def speedup(evidence: MetricInputs) -> Estimate:
    """The baseline's seconds over the setting's, both summed over all (caption batch, repetition) pairs."""
    return _timed_ratio(evidence, evidence.timing("seconds_vanilla"), evidence.timing("seconds"))


def latency(evidence: MetricInputs) -> Estimate:
    """Seconds per image at the timing shards' batch size."""
    return _timed_ratio(evidence, evidence.timing("seconds"), evidence.timing("images"))


def _timed_ratio(evidence: MetricInputs, above: Tensor, below: Tensor) -> Estimate:
    """The ratio of two sums over the timings; `n` is the number of different images timed.

    Repetitions draw the same tokens once more, and so tell of the clock and not of other captions: the jackknife leaves
    a batch of captions out with all of its repetitions.

    Raises:
        Unmeasurable: a single batch of captions was timed.
    """
    groups = evidence.timings.groups()
    batches = int(groups.max()) + 1 if groups.numel() else 0
    if batches < 2:
        raise MetricUnavailable(
            f"{batches} batch of captions was timed, and repetitions of it tell nothing of other captions: an error "
            "needs at least 2, so raise timing.images above timing.batch"
        )
    images = torch.zeros(batches, dtype=torch.int64).scatter_reduce(0, groups, evidence.timing("images").long(), "amax")
    return replace(ratio_estimate(above, below, groups), n=int(images.sum()))


def mean_accepted_length(evidence: MetricInputs) -> Estimate:
    """Tokens over target passes, both summed over all images, the prefills and their tokens left out."""
    return ratio_estimate(evidence.column("emitted"), evidence.column("rounds"), evidence.images.groups())


def step_compression(evidence: MetricInputs) -> Estimate:
    """Mean over images of all their tokens over all their target passes, the prefill counted on both sides."""
    compression = (evidence.column("emitted") + 1) / (evidence.column("rounds") + 1)
    return grouped_mean(compression, evidence.column("caption_id"))


def mean_tree_depth(evidence: MetricInputs) -> Estimate:
    """Mean over images of the levels drafted per round; plain decoding counts as 1."""
    return grouped_mean(evidence.column("depth"), evidence.column("caption_id"))


def target_passes(evidence: MetricInputs) -> Estimate:
    """Mean over images of the target's passes, prefill excluded."""
    return grouped_mean(evidence.column("rounds"), evidence.column("caption_id"))


METRICS = (
    Metric(
        name="speedup",
        direction="maximize",
        unit="x",
        about="the baseline's seconds over the setting's, in turn on the same captions and worker",
        needs=(TIMINGS,),
        compute=speedup,
    ),
    Metric(
        name="latency",
        direction="minimize",
        unit="s/image",
        about="seconds per image at the timing shards' batch size",
        needs=(TIMINGS,),
        compute=latency,
    ),
    Metric(
        name="mean_accepted_length",
        direction="maximize",
        unit="tokens/pass",
        about="tokens emitted per target pass, prefill excluded",
        needs=("emitted", "rounds"),
        compute=mean_accepted_length,
    ),
    Metric(
        name="step_compression",
        direction="maximize",
        unit="tokens/pass",
        about="tokens of an image over its target passes, prefill included",
        needs=("emitted", "rounds"),
        compute=step_compression,
    ),
    Metric(
        name="mean_tree_depth",
        direction="minimize",
        unit="levels",
        about="levels drafted per round",
        needs=("depth",),
        compute=mean_tree_depth,
    ),
    Metric(
        name="target_passes",
        direction="minimize",
        unit="passes",
        about="target passes per image, prefill excluded",
        needs=("rounds",),
        compute=target_passes,
    ),
)
