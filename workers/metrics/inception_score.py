"""Inception score on the classes that the feature net reads: are objects clear, and are there many kinds?

exp of the mean divergence KL(p(y | image) || p(y)) (Salimans et al. 2016). Of Inception's features y is one of its 1008
classes; of the scenes' net it is the shape and the colour of the first object, 48 classes. One split over all images;
biased in n, so compare at equal n. It lies between 1 and the number of classes. Computed here, because torchmetrics
shuffles the images by the global random numbers and leaves no captions out; a test compares the two.
"""

from __future__ import annotations

import torch
from torch import Tensor

from workers.metrics.estimate import Estimate, MetricUnavailable, jackknife_error
from workers.metrics.metric import NET, Metric, MetricInputs

GROUPS = 25


def inception_score(logits: Tensor, groups: Tensor) -> Estimate:
    """The score of class logits [n, classes], with the jackknife over groups [n].

    Raises:
        Unmeasurable: there are fewer than two groups.
    """
    size = int(groups.max()) + 1 if groups.numel() else 0
    if size < 2:
        raise MetricUnavailable(f"an inception score with its error needs images of at least 2 captions, got {size}")
    log_p = logits.double().log_softmax(1)
    p = log_p.exp()
    sums = torch.zeros(size, p.shape[1], dtype=torch.float64).index_add_(0, groups, p)
    negentropy = torch.zeros(size, dtype=torch.float64).index_add_(0, groups, torch.special.xlogy(p, p).sum(1))
    counts = torch.bincount(groups, minlength=size).double()

    def score(total: Tensor, inner: Tensor, n: Tensor) -> Tensor:
        mean = total / n[..., None]
        scores: Tensor = (inner / n - torch.special.xlogy(mean, mean).sum(-1)).exp()
        return scores

    value = score(sums.sum(0), negentropy.sum(), counts.sum())
    left_out = score(sums.sum(0) - sums, negentropy.sum() - negentropy, counts.sum() - counts)
    return Estimate(value.item(), jackknife_error(left_out).item(), logits.shape[0])


def _compute(evidence: MetricInputs) -> Estimate:
    logits = evidence.reader().class_logits(evidence.column("features"))
    return inception_score(logits, evidence.images.groups(GROUPS))


METRICS = (
    Metric(
        name="inception_score",
        direction="maximize",
        unit="classes",
        about="Inception score on the feature net's classes: Inception's 1008, or an object's shape and colour (48)",
        needs=("features", NET),
        compute=_compute,
    ),
)
