"""Inception score on the classes that the feature extractor predicts: are objects clear, and are they diverse?

exp of the mean divergence KL(p(y | image) || p(y)) (Salimans et al. 2016). With Inception, y is one of 1008 classes;
with the scenes' extractor, it is the shape and the colour of the first object, 48 classes. One split over all images;
biased in n, so compare at equal n. It ranges from 1 to the number of classes. The tests
compare it with torchmetrics, which is not used here: it shuffles images with the global random generator and has no
jackknife over captions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from workers.metrics.definition import CLASSIFIER, FEATURES
from workers.metrics.estimate import Estimate, block_sizes, with_left_out
from workers.metrics.metric import MetricInputs, register_metric


def inception_score(logits: Tensor, blocks: Tensor) -> Estimate:
    """The score of class logits [n, classes], with the jackknife over blocks [n] of captions.

    Raises:
        MetricUnavailable: there are fewer than two blocks.
    """
    sizes = block_sizes(blocks)
    log_p = logits.double().log_softmax(1)
    p = log_p.exp()
    sums = torch.zeros(sizes.numel(), p.shape[1], dtype=torch.float64).index_add_(0, blocks, p)
    negentropy = torch.zeros(sizes.numel(), dtype=torch.float64).index_add_(0, blocks, torch.special.xlogy(p, p).sum(1))
    count = with_left_out(sizes.double())
    mean = with_left_out(sums) / count[:, None]
    scores = (with_left_out(negentropy) / count - torch.special.xlogy(mean, mean).sum(1)).exp()
    return Estimate.from_replicates(scores, logits.shape[0])


@register_metric("inception_score", direction="maximize", unit="classes", needs=(FEATURES, CLASSIFIER))
def _inception_score(inputs: MetricInputs) -> Estimate:
    """Inception score on the extractor's classes: Inception's 1008, or an object's shape and colour (48)."""
    return inception_score(inputs.class_logits(), inputs.blocks)
