"""Checks the step costs that trials share: a trial that was timed itself must be as fast as its counts say."""

from __future__ import annotations

import math
from collections.abc import Sequence

from orchestrator.results.trials import COMPLETE, TrialRecord

LEVEL = 0.01  # chance that any warning of a sweep is a false alarm


def speed_warnings(records: Sequence[TrialRecord], batch: int = 1) -> list[str]:
    """A sentence for each trial whose `speedup` and `speedup_timed` differ beyond their errors.

    Student's t with the degrees of freedom of the timed batches of captions, whose error is the larger by far. The
    level is divided by the number of trials that were checked (Bonferroni). batch: images of a timed batch.
    """
    from scipy.special import stdtr  # the import takes a part of a second

    checked = []
    for record in records:
        exact, timed = (record.metrics.get(name) for name in ("speedup", "speedup_timed"))
        if record.state != COMPLETE or record.duplicate_of is not None or exact is None or timed is None:
            continue
        error, freedom = math.hypot(exact.error or 0, timed.error or 0), timed.n // batch - 1
        if error > 0 and freedom > 0:
            distance = abs(exact.value - timed.value) / error
            checked.append((record, exact, timed, 2 * float(stdtr(freedom, -distance))))
    return [
        f"trial {record.number}: speedup is {exact.value:.3g}, but timed alone {timed.value:.3g} (p = {chance:.1g}): a "
        "step may cost more or less than in the timed trial of its shape; time more of them with timing.direct"
        for record, exact, timed, chance in checked
        if chance * len(checked) < LEVEL
    ]
