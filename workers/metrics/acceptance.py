"""Acceptance as benchmarks of speculation report it: how many drafts a verification accepts, and
how often the draft at each position is accepted, of all captions and by group.

    share(a)  verifications that accepted exactly a drafts, of all (the acceptance histogram)
    rate(d)   verifications that accepted a draft at position d, of those that tested one there

A draft at position d is tested if those before it were accepted and there is one below the last of
them. So the probability that a verification accepts d drafts is the product of the rates up to d,
where all of them tested as many. Both are ratios of counts, with the jackknife over the blocks of
captions that all metrics have.

This module needs numpy alone, and pyarrow for tables.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from workers.metrics.estimate import BLOCKS, Estimate
from workers.metrics.readings import Floats

if TYPE_CHECKING:
    import pyarrow

UNGROUPED = "none"  # captions without a group, where others have one


def acceptance_file(digest: str) -> str:
    """The file of a config's counts in a sweep's store. digest: of the config."""
    return f"acceptance/{digest}.parquet"


class Position(NamedTuple):
    """What verifications did with one number of drafts."""

    drafts: int
    verifications: int  # that accepted exactly so many
    share: Estimate  # of all
    tested: int  # verifications that tested a draft at this position; at 0 all
    accepted: int  # of these, that accepted it
    rate: Estimate | None  # None where nothing was tested, and at 0


@dataclass(frozen=True, eq=False)
class AcceptanceCounts:
    """Counts by group of captions, block of captions and number of drafts."""

    groups: tuple[str, ...]  # a single "" if no caption has one
    # [groups, blocks, 1 + positions] verifications that tested a draft at a position; at 0 all
    tested: Floats
    accepted: Floats  # the same, that accepted a draft there

    @classmethod
    def of(
        cls,
        histograms: Sequence[Sequence[int]],
        tested: Sequence[Sequence[int]],
        groups: Sequence[str],
        blocks: Sequence[int],
    ) -> Self:
        """The counts of images.

        Args:
            histograms: the acceptance histogram of each image (see `ImageStatistics`).
            tested: of each image, verifications that tested a draft at each position from 1 on.
            groups: the group of each image's caption; "" for none.
            blocks: the block of each image's caption.
        """
        names = sorted(set(groups))
        if len(names) > 1:
            groups = [group or UNGROUPED for group in groups]
            names = sorted(set(groups))
        positions = max(map(len, [*histograms, *([0, *own] for own in tested)]))
        shape = (len(names), BLOCKS, positions)
        found = np.zeros((2, *shape))
        for histogram, own, group, block in zip(histograms, tested, groups, blocks, strict=True):
            place = names.index(group)
            made = sum(histogram)
            # accepted at a position: all that accepted at least so many
            at_least = np.cumsum(histogram[::-1])[::-1]
            found[0, place, block, : len(own) + 1] += [made, *own]
            found[1, place, block, : len(at_least)] += at_least
        return cls(tuple(names), found[0], found[1])

    def to_table(self) -> pyarrow.Table:
        """A row for each group, block and number of drafts that has counts."""
        import pyarrow as pa

        group, block, drafts = np.nonzero(self.tested + self.accepted)
        values = {
            "group": [self.groups[place] for place in group],
            "block": block,
            "drafts": drafts,
            "tested": self.tested[group, block, drafts].astype(np.int64),
            "accepted": self.accepted[group, block, drafts].astype(np.int64),
        }
        return pa.table(values, _schema())

    @classmethod
    def from_table(cls, table: pyarrow.Table) -> Self:
        """Read what `to_table` wrote. Raises ValueError for anything else."""
        if table.schema != _schema() or any(column.null_count for column in table.columns):
            raise ValueError("not counts of accepted drafts")
        columns = {name: table[name].to_numpy() for name in table.column_names}
        smallest = min(columns[name].min() for name in table.column_names[1:])
        most = columns["drafts"].max()
        # a block has a row for each number of drafts up to its largest
        if smallest < 0 or columns["block"].max() >= BLOCKS or most >= table.num_rows:
            raise ValueError("counts of accepted drafts that are out of range")
        names, group = np.unique(columns["group"].astype(str), return_inverse=True)
        shape = (len(names), BLOCKS, int(most) + 1)
        tested = np.zeros(shape)
        accepted = np.zeros(shape)
        place = (group, columns["block"], columns["drafts"])
        tested[place] = columns["tested"]
        accepted[place] = columns["accepted"]
        return cls(tuple(names.tolist()), tested, accepted)

    def positions(self, group: str | None = None) -> list[Position]:
        """What verifications did with each number of drafts. group: of captions; None: all."""
        tested, accepted = self._of(group)
        exactly = accepted - np.pad(accepted, ((0, 0), (0, 1)))[:, 1:]
        made = accepted[:, :1]
        found = []
        for drafts in range(accepted.shape[1]):
            rate = None
            if drafts and tested[:, drafts].sum():
                rate = _ratio(accepted[:, drafts], tested[:, drafts])
            found.append(
                Position(
                    drafts=drafts,
                    verifications=int(exactly[:, drafts].sum()),
                    share=_ratio(exactly[:, drafts], made[:, 0]),
                    tested=int(tested[:, drafts].sum()),
                    accepted=int(accepted[:, drafts].sum()),
                    rate=rate,
                )
            )
        return found

    def mean_accepted(self, group: str | None = None) -> Estimate:
        """Accepted drafts of a verification. group: of captions; None: all."""
        _, accepted = self._of(group)
        return _ratio(accepted[:, 1:].sum(axis=1), accepted[:, 0])

    def _of(self, group: str | None) -> tuple[Floats, Floats]:
        """Counts [blocks, 1 + positions] of a group, without the positions that it has none of."""
        if group is None:
            tested, accepted = self.tested.sum(axis=0), self.accepted.sum(axis=0)
        else:
            place = self.groups.index(group)
            tested, accepted = self.tested[place], self.accepted[place]
        known = int(np.nonzero((tested + accepted).sum(axis=0))[0].max(initial=0)) + 1
        return tested[:, :known], accepted[:, :known]

    def to_mapping(self) -> dict[str, Any]:
        """All of it as plain data: of all captions, and by group if there are several."""
        found = {"all": self._plain(None)}
        if len(self.groups) > 1:
            found["groups"] = {group: self._plain(group) for group in self.groups}
        return found

    def _plain(self, group: str | None) -> dict[str, Any]:
        positions = self.positions(group)
        mean = self.mean_accepted(group)
        return {
            "accepted_drafts": {"value": mean.value, "error": mean.known_error},
            "histogram": [
                {
                    "drafts": each.drafts,
                    "verifications": each.verifications,
                    "share": each.share.value,
                    "error": each.share.known_error,
                }
                for each in positions
            ],
            "by_position": [
                {
                    "position": each.drafts,
                    "tested": each.tested,
                    "accepted": each.accepted,
                    "rate": each.rate.value,
                    "error": each.rate.known_error,
                }
                for each in positions
                if each.rate is not None
            ],
        }


def _schema() -> pyarrow.Schema:
    """Columns of `to_table`, and their types."""
    import pyarrow as pa

    places = dict.fromkeys(("block", "drafts"), pa.int32())
    return pa.schema({"group": pa.string(), **places, "tested": pa.int64(), "accepted": pa.int64()})


def _ratio(numerator: Floats, denominator: Floats) -> Estimate:
    """sum(numerator) / sum(denominator) over blocks [G], those without counts left out. The error
    is unknown where a replicate has no denominator.
    """
    known = denominator > 0
    top, bottom = numerator[known], denominator[known]
    count = int(bottom.sum())
    with np.errstate(invalid="ignore", divide="ignore"):
        left_out = (top.sum() - top) / (bottom.sum() - bottom)
    value = float(top.sum() / bottom.sum())
    if len(left_out) < 2 or not np.isfinite(left_out).all():
        return Estimate(value, math.inf, count)
    return Estimate.from_replicates(np.array([value, *left_out]), count)
