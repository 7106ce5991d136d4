"""Inception score on the classes that the feature extractor predicts: are objects clear, and are they diverse?

exp of the mean divergence KL(p(y | image) || p(y)) (Salimans et al. 2016). With Inception, y is one of 1008 classes;
with the scenes' extractor, it is the shape and the colour of the first object, 48 classes. One split over all images;
biased in n, so compare at equal n. It ranges from 1 to the number of classes. torchmetrics is only a parity test: it
shuffles the images with the global random generator and has no jackknife over captions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from workers.metrics.estimate import Estimate, MetricUnavailable, count_groups, jackknife_error
from workers.metrics.metric import CLASSIFIER, FEATURES, MetricInputs, register_metric

_GROUPS = 25


def inception_score(logits: Tensor, groups: Tensor) -> Estimate:
    """The score of class logits [n, classes], with the jackknife over groups [n].

    Raises:
        MetricUnavailable: there are fewer than two groups.
    """
    size = count_groups(groups)
    if size < 2:
        raise MetricUnavailable(f"the inception score needs images of at least 2 captions for its error, got {size}")
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


@register_metric("inception_score", direction="maximize", unit="classes", needs=(FEATURES, CLASSIFIER))
def _inception_score(inputs: MetricInputs) -> Estimate:
    """Inception score on the extractor's classes: Inception's 1008, or an object's shape and colour (48)."""
    return inception_score(inputs.class_logits(), inputs.images.groups(_GROUPS))
