"""Speed: exact counts of decoding steps, the cost of a step from timing sessions, and the two
together.
"""

from __future__ import annotations

from workers.metrics.costs import batch_passes
from workers.metrics.definition import TIMINGS
from workers.metrics.estimate import Estimate, block_mean, ratio_estimate
from workers.metrics.metric import MetricInputs, register_metric
from workers.metrics.readings import Floats


def batch_speedup(inputs: MetricInputs, batch: int | None = None) -> Estimate:
    """The speed-up at a batch size, by default the first timed one. Raises MetricUnavailable if the
    setting was not timed there.
    """
    prices, size = inputs.timings.of(inputs.config.shape, batch)
    return prices.speedup(inputs.config.shape, _passes(inputs, size), inputs.images.count)


def batch_latency(inputs: MetricInputs, batch: int | None = None) -> Estimate:
    """Seconds per image at a batch size, as in `batch_speedup`."""
    prices, size = inputs.timings.of(inputs.config.shape, batch)
    return prices.latency(inputs.config.shape, _passes(inputs, size), inputs.images.count, size)


def _passes(inputs: MetricInputs, batch: int) -> Floats:
    return batch_passes(inputs.column("passes").numpy(), inputs.blocks.numpy(), batch)


@register_metric(
    "speedup", direction="maximize", unit="x", needs=(TIMINGS, "passes"), at_batch=batch_speedup
)
def speedup(inputs: MetricInputs) -> Estimate:
    """Vanilla's seconds over the setting's: its prefill, plus the passes of all images times the
    cost of a pass.

    The costs are those of the setting's shape, timed in turn with vanilla's (see
    `workers.metrics.costs`).
    """
    return batch_speedup(inputs)


@register_metric(
    "latency",
    direction="minimize",
    unit="s/image",
    needs=(TIMINGS, "passes"),
    at_batch=batch_latency,
)
def latency(inputs: MetricInputs) -> Estimate:
    """Seconds per image of a timed batch: vanilla's in all timing sessions, over the speed-up."""
    return batch_latency(inputs)


@register_metric("step_cost", direction="minimize", unit="passes of vanilla", needs=(TIMINGS,))
def step_cost(inputs: MetricInputs) -> Estimate:
    """Seconds of a pass of the setting's shape, with all that belongs to it, over those of a pass
    of vanilla.
    """
    prices, _ = inputs.timings.of(inputs.config.shape)
    return prices.step_cost(inputs.config.shape)


@register_metric(
    "mean_accepted_length", direction="maximize", unit="tokens/pass", needs=("emitted", "passes")
)
def mean_accepted_length(inputs: MetricInputs) -> Estimate:
    """Tokens emitted per target pass, prefill excluded.

    Both are summed over all images.
    """
    return ratio_estimate(inputs.column("emitted"), inputs.column("passes"), inputs.blocks)


@register_metric(
    "step_compression", direction="maximize", unit="tokens/pass", needs=("emitted", "passes")
)
def step_compression(inputs: MetricInputs) -> Estimate:
    """Tokens of an image over its target passes, prefill included; the mean over images."""
    compression = (inputs.column("emitted") + 1) / (inputs.column("passes") + 1)
    return block_mean(compression, inputs.blocks)


@register_metric("mean_tree_depth", direction="minimize", unit="levels", needs=("depth",))
def mean_tree_depth(inputs: MetricInputs) -> Estimate:
    """Levels drafted per pass, the mean over images; vanilla decoding counts as 1."""
    return block_mean(inputs.column("depth"), inputs.blocks)


@register_metric("target_passes", direction="minimize", unit="passes", needs=("passes",))
def target_passes(inputs: MetricInputs) -> Estimate:
    """Target passes per image, prefill excluded."""
    return block_mean(inputs.column("passes"), inputs.blocks)
