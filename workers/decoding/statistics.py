"""Statistics of decoding, by pass and by image."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from workers.decoding.accept import AcceptResult
from workers.decoding.state import Batch, Request
from workers.decoding.timer import PHASES, PhaseTimer
from workers.decoding.tree import DraftTree, gather_rows


@dataclass(frozen=True, slots=True)
class ImageStatistics:
    """The passes of one image. A pass with an unverified path drafts the levels of two trees, and
    emits and reads the path's tokens as well.
    """

    emitted: Tensor  # [passes] emitted tokens, int64: the accepted drafts and one more
    position: Tensor  # [passes] the token index of the first emitted token
    depth: Tensor  # [passes] levels drafted
    nodes: Tensor  # [passes] nodes that the target reads after the root
    # [most accepted drafts + 1] in how many verifications so many drafts were accepted. A pass
    # verifies one draft tree, and one for each of an image's rows that it decodes.
    acceptance_histogram: Tensor
    # [most tested positions] in how many verifications a draft at this position was tested: those
    # before it were accepted, and there was one below the last of them.
    tested: Tensor
    # By phase, the image's equal share of its prefill and of each of its passes.
    seconds: dict[str, float]

    @property
    def passes(self) -> int:
        """Passes of the target, prefill excluded."""
        return int(self.emitted.numel())

    @property
    def mean_accepted_length(self) -> float:
        """Tokens emitted per target pass; 1 for vanilla decoding. The prefill's token does not
        count.
        """
        return float(self.emitted.float().mean())

    @property
    def step_compression(self) -> float:
        """Tokens of the image divided by its target passes; both counts include the prefill."""
        return (int(self.emitted.sum()) + 1) / (self.passes + 1)

    @property
    def mean_tree_depth(self) -> float:
        """Levels drafted per pass. Vanilla decoding counts as 1, as in the papers' tables."""
        return float(self.depth.clamp(min=1).float().mean())

    @property
    def latency(self) -> float:
        """Seconds, prefill included."""
        return sum(self.seconds.values())


@dataclass(frozen=True, slots=True)
class Result:
    """One finished image."""

    request: Request
    tokens: Tensor  # [image_len] int64 on the CPU
    statistics: ImageStatistics


@dataclass(frozen=True, slots=True)
class PassCounts:
    """What a pass did, for every row."""

    so_far: list[int]  # image tokens emitted by all passes
    emitted: list[int]  # image tokens emitted by this pass
    depth: list[int]  # levels drafted
    nodes: list[int]  # nodes drafted
    # for every draft tree, all rows' first ones first; see `verification_outcomes`
    outcomes: list[int]


def verification_outcomes(tree: DraftTree, result: AcceptResult, batch: Batch) -> Tensor:
    """The outcome [B] of each draft tree's verification as one number: twice the accepted drafts,
    and one more if drafts below the last of them were tested, and so rejected.

    Drafts that are verified together (`block`, `traversal`) count as tested up to the first one
    that was not accepted.

    Args:
        tree: the drafts.
        result: which of them were accepted.
        batch: the images before the pass; an image's last token is never a draft.
    """
    accepted = result.num_accepted
    if not tree.shape.max_depth:
        return accepted  # nothing was drafted, so it is 0
    limit = (batch.image_len - 1) - batch.emitted
    if result.path is None:
        is_rejected = accepted < tree.num_nodes.minimum(limit)
    else:
        last = result.path.gather(1, accepted[:, None])[:, 0]
        children = gather_rows(tree.shape.children, last)
        # no child is slot 0
        exists = pad(tree.exists, (1, 0)).expand(len(children), -1)
        is_rejected = exists.gather(1, children).any(1) & (accepted < limit)
    if result.unverified is not None:
        accepted = accepted - result.unverified
    return torch.add(is_rejected, accepted, alpha=2)


def _by_position(outcomes: list[int]) -> tuple[Tensor, Tensor]:
    """The histogram and the tests by position (see `ImageStatistics`) of an image's outcomes."""
    made = torch.tensor([outcome for outcome in outcomes if outcome >= 0], dtype=torch.int64)
    accepted = made >> 1
    levels = (accepted + (made & 1)).bincount()
    # tested at a position: all whose number of levels is at least that
    return accepted.bincount(), levels.flip(0).cumsum(0).flip(0)[1:]


class StatisticsRecorder:
    """Collects the passes of every row of a batch until its image is finished."""

    def __init__(self, size: int, timer: PhaseTimer) -> None:
        self.requests: list[Request | None] = [None] * size  # None at rows without an open image
        # for each row, the emitted tokens, depth and nodes of every pass
        self._passes: list[list[tuple[int, int, int]]] = [[] for _ in range(size)]
        # for each row, the outcomes of every pass
        self._outcomes: list[list[int]] = [[] for _ in range(size)]
        self._timer = timer
        self._share = dict.fromkeys(PHASES, 0.0)  # one row's share of all passes' seconds
        self._start_share: list[dict[str, float]] = [{}] * size

    @property
    def open_rows(self) -> list[int]:
        """The rows at which an image is open."""
        return [row for row, request in enumerate(self.requests) if request is not None]

    def open(self, rows: list[int], requests: list[Request], seconds: float = 0.0) -> None:
        """Start new images at these rows. The timer has just measured their prefill, but for
        `seconds` of each image, which were measured before.
        """
        prefill = seconds + self._timer.take()["prefill"] / len(rows)
        for row, request in zip(rows, requests, strict=True):
            self.requests[row] = request
            self._passes[row] = []
            self._outcomes[row] = []
            self._start_share[row] = {**self._share, "prefill": self._share["prefill"] - prefill}

    def record(self, counts: PassCounts) -> None:
        """Append one pass of every row."""
        rows = len(self._passes)
        for row, passes in enumerate(self._passes):
            passes.append((counts.emitted[row], counts.depth[row], counts.nodes[row]))
            self._outcomes[row] += counts.outcomes[row::rows]

    def close(self, rows: list[int]) -> list[tuple[Request, ImageStatistics]]:
        """The requests and the statistics of the finished images at these rows."""
        images = len(self.open_rows)
        for phase, seconds in self._timer.take().items():
            self._share[phase] += seconds / images
        return [self._close(row) for row in rows]

    def _close(self, row: int) -> tuple[Request, ImageStatistics]:
        request = self.requests[row]
        self.requests[row] = None
        assert request is not None, "an image is open at this row"
        emitted, depth, nodes = torch.tensor(self._passes[row]).T.contiguous()
        seconds = {
            phase: total - self._start_share[row][phase] for phase, total in self._share.items()
        }
        position = emitted.cumsum(0) - emitted + 1
        histogram, tested = _by_position(self._outcomes[row])
        return request, ImageStatistics(emitted, position, depth, nodes, histogram, tested, seconds)

    def keep(self, rows: list[int]) -> None:
        """Keep only these rows, in that order."""
        self.requests = [self.requests[row] for row in rows]
        self._passes = [self._passes[row] for row in rows]
        self._outcomes = [self._outcomes[row] for row in rows]
        self._start_share = [self._start_share[row] for row in rows]
