"""Speed: exact counts of decoding steps, the cost of a step from timing shards, and the two together."""

from __future__ import annotations

import torch
from torch import Tensor

from workers.metrics.costs import VANILLA, batch_costs, expected_max, mean_passes
from workers.metrics.definition import OWN_TIMINGS, TIMINGS
from workers.metrics.estimate import (
    Estimate,
    MetricUnavailable,
    block_mean,
    block_sizes,
    jackknife_error,
    ratio_estimate,
)
from workers.metrics.metric import MetricInputs, Rows, register_metric


@register_metric("speedup", direction="maximize", unit="x", needs=(TIMINGS, "rounds"))
def speedup(inputs: MetricInputs) -> Estimate:
    """The baseline's seconds over the setting's: its prefill, plus the passes of all images times the cost of a pass.

    The costs are those of the setting's shape, timed in turn with the baseline's. The jackknife over captions gives
    `replicates`, that over timed units `noise`.
    """
    setting = _seconds(inputs)
    baseline = batch_costs(inputs.timings, VANILLA).seconds(mean_passes(inputs.timings, VANILLA))
    by_captions, by_units = (slow / fast for slow, fast in zip(baseline, setting, strict=True))
    return _from_captions_and_units(inputs, by_captions, by_units)


@register_metric("latency", direction="minimize", unit="s/image", needs=(TIMINGS, "rounds"))
def latency(inputs: MetricInputs) -> Estimate:
    """Seconds per image at the timing shards' batch size: the prefill, plus the passes of all images times the cost of
    a pass.
    """
    by_captions, by_units = (seconds / _batch(inputs) for seconds in _seconds(inputs))
    return _from_captions_and_units(inputs, by_captions, by_units)


def _from_captions_and_units(inputs: MetricInputs, by_captions: Tensor, by_units: Tensor) -> Estimate:
    """The estimate from values [1 + G] and [1 + U]: of everything, then without each block or timed unit."""
    noise = jackknife_error(by_units[1:]).item()
    return Estimate.from_replicates(by_captions, inputs.images.count, noise, noise_dof=len(by_units) - 2)


def _seconds(inputs: MetricInputs) -> tuple[Tensor, Tensor]:
    """Seconds of a batch (see `BatchCosts.seconds`). It ends with its longest image, so its passes are the largest of
    as many images, drawn at random.
    """
    rounds, blocks = inputs.column("rounds"), inputs.blocks
    batch, costs = _batch(inputs), batch_costs(inputs.timings)
    kept = [rounds, *(rounds[blocks != block] for block in range(len(block_sizes(blocks))))]
    return costs.seconds(torch.stack([expected_max(part, batch) for part in kept]))


def _batch(inputs: MetricInputs) -> int:
    """Images of a timed batch."""
    return int(inputs.timing("images").max())


@register_metric("speedup_timed", direction="maximize", unit="x", needs=(TIMINGS, OWN_TIMINGS))
def speedup_timed(inputs: MetricInputs) -> Estimate:
    """The baseline's seconds over the setting's, both summed over the captions that this setting itself was timed on.

    Only some settings of a shape are timed themselves, to check its costs. Repetitions sample the same tokens again,
    so the jackknife leaves out a batch of captions with all its repetitions; `n` is the number of different images.

    Raises:
        MetricUnavailable: the setting was not timed, or on a single batch of captions.
    """
    timings = _own_timings(inputs)
    first_captions, groups = torch.unique(timings["caption_id"], return_inverse=True)
    batches = first_captions.numel()
    if batches < 2:
        raise MetricUnavailable(
            f"{batches} batch of captions was timed, but a standard error needs at least 2 (repetitions do not count): "
            "raise timing.images above timing.batch"
        )
    images = torch.zeros(batches, dtype=torch.int64).scatter_reduce(0, groups, timings["images"].long(), "amax")
    ratio = ratio_estimate(timings["seconds_vanilla"], timings["seconds"], groups)
    return Estimate(ratio.value, ratio.error, int(images.sum()), error_dof=batches - 1)


@register_metric("step_cost", direction="minimize", unit="passes of vanilla", needs=(TIMINGS, OWN_TIMINGS))
def step_cost(inputs: MetricInputs) -> Estimate:
    """Seconds of a pass, with all that belongs to it, over those of a pass of the baseline.

    From the setting's own timings, if it has any; the jackknife and `n` are over timed units.
    """
    timings = _own_timings(inputs)
    ratio = batch_costs(timings).per_pass / batch_costs(timings, VANILLA).per_pass
    error = jackknife_error(ratio[1:]).item()
    return Estimate(ratio[0].item(), error, timings.count, error_dof=timings.count - 1)


def _own_timings(inputs: MetricInputs) -> Rows:
    if not inputs.own_timings.count:
        raise MetricUnavailable("another trial of its shape was timed; timing.direct times more of them")
    return inputs.own_timings


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
    """Levels drafted per pass, the mean over images; vanilla decoding counts as 1."""
    return block_mean(inputs.column("depth"), inputs.blocks)


@register_metric("target_passes", direction="minimize", unit="passes", needs=("rounds",))
def target_passes(inputs: MetricInputs) -> Estimate:
    """Target passes per image, prefill excluded."""
    return block_mean(inputs.column("rounds"), inputs.blocks)
