"""Speed: seconds from timing shards, and counts of decoding steps, which timing noise cannot change."""

from __future__ import annotations

import torch
from torch import Tensor

from workers.metrics.estimate import Estimate, MetricUnavailable, block_mean, ratio_estimate
from workers.metrics.metric import TIMINGS, MetricInputs, register_metric


@register_metric("speedup", direction="maximize", unit="x", needs=(TIMINGS,))
def speedup(inputs: MetricInputs) -> Estimate:
    """The baseline's seconds over the setting's, timed in turn on the same captions and worker.

    Both are summed over all (caption batch, repetition) pairs.
    """
    return _timed_ratio(inputs, inputs.timing("seconds_vanilla"), inputs.timing("seconds"))


@register_metric("latency", direction="minimize", unit="s/image", needs=(TIMINGS,))
def latency(inputs: MetricInputs) -> Estimate:
    """Seconds per image at the timing shards' batch size."""
    return _timed_ratio(inputs, inputs.timing("seconds"), inputs.timing("images"))


def _timed_ratio(inputs: MetricInputs, numerator: Tensor, denominator: Tensor) -> Estimate:
    """The ratio of two sums over the timings; `n` is the number of different images timed.

    Repetitions sample the same tokens again, so they measure the clock and not other captions: the jackknife leaves out
    a batch of captions with all its repetitions.

    Raises:
        MetricUnavailable: a single batch of captions was timed.
    """
    groups: Tensor = torch.unique_consecutive(inputs.timing("caption_id"), return_inverse=True)[1]  # rows are sorted
    batches = int(groups.max()) + 1
    if batches < 2:
        raise MetricUnavailable(
            f"{batches} batch of captions was timed, but a standard error needs at least 2 (repetitions do not count): "
            "raise timing.images above timing.batch"
        )
    images = torch.zeros(batches, dtype=torch.int64).scatter_reduce(0, groups, inputs.timing("images").long(), "amax")
    ratio = ratio_estimate(numerator, denominator, groups)
    return Estimate(ratio.value, ratio.error, int(images.sum()), noise=ratio.error)


@register_metric("mean_accepted_length", direction="maximize", unit="tokens/pass", needs=("emitted", "rounds"))
def mean_accepted_length(inputs: MetricInputs) -> Estimate:
    """Tokens emitted per target pass, prefill excluded.

    Both are summed over all images.
    """
    return ratio_estimate(inputs.column("emitted"), inputs.column("rounds"), inputs.blocks)


@register_metric("step_compression", direction="maximize", unit="tokens/pass", needs=("emitted", "rounds"))
def step_compression(inputs: MetricInputs) -> Estimate:
    """Tokens of an image over its target passes, prefill included; the mean over images."""
    compression = (inputs.column("emitted") + 1) / (inputs.column("rounds") + 1)
    return block_mean(compression, inputs.blocks)


@register_metric("mean_tree_depth", direction="minimize", unit="levels", needs=("depth",))
def mean_tree_depth(inputs: MetricInputs) -> Estimate:
    """Levels drafted per round, the mean over images; vanilla decoding counts as 1."""
    return block_mean(inputs.column("depth"), inputs.blocks)


@register_metric("target_passes", direction="minimize", unit="passes", needs=("rounds",))
def target_passes(inputs: MetricInputs) -> Estimate:
    """Target passes per image, prefill excluded."""
    return block_mean(inputs.column("rounds"), inputs.blocks)
