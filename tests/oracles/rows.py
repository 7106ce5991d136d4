"""Several rows at once, plainly: every pass computes all that was ever fed, under what each input
saw. And a target whose probs are a table of a cell's neighbours, so that images have known probs
under any order of decoding.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor, nn

from search_spaces.trial import Sampling
from tests.fakes.toys import BASE, ToyCodec, ToyConditioner
from workers.decoding.rng import CounterRNG, Purpose, image_keys
from workers.decoding.row_ends import RowEnds
from workers.decoding.sampling import guided_logits, stream_count, to_probs
from workers.decoding.state import Request
from workers.models.cache import CacheView
from workers.models.target import Target
from workers.models.transformer import Body, TransformerConfig


@dataclass
class Input:
    """A token or a row end that was fed. order: its place. is_hidden: a stand-in, which no other
    input sees.
    """

    x: Tensor
    position: int
    row: int
    order: int
    is_hidden: bool
    sees: list[int] = field(default_factory=list)


class PlainRows:
    """One image, a token of every row that has begun in each pass."""

    def __init__(
        self, target: Target, request: Request, sampling: Sampling, lag: int, seed: int = 0
    ) -> None:
        self.target, self.sampling, self.grid = target, sampling, target.grid
        self.lag = min(lag, target.grid.cols)
        self.ends = (
            None if target.row_end is None else RowEnds(target.transformer.config, target.row_end)
        )
        self.prompt = target.encode([request.caption], guided=stream_count(sampling.cfg) == 2)
        keys = image_keys(seed, [request.caption_id], [request.sample])
        self.rng = CounterRNG(keys, target.grid.tokens)
        self.inputs: list[Input] = []
        self.rows: list[list[int]] = [[] for _ in range(target.grid.rows)]
        self.fed = [0] * target.grid.rows  # of each row's tokens
        self.rows[0].append(self.sample(self.logits([])[0], 0))
        self.passes = 1

    def sample(self, logits: Tensor, cell: int) -> int:
        if self.sampling.temperature == 0:
            return int(logits.argmax())
        probs = to_probs(logits, self.sampling)
        return int(self.rng.sample(Purpose.TARGET, probs[None, None], torch.tensor([[cell]])))

    def logits(self, queries: Sequence[int]) -> list[Tensor]:
        """Logits [V] behind each of these inputs; without any, behind the prompt."""
        valid, embeds = self.prompt.valid, self.prompt.embeds
        length, count = valid.shape[1], len(self.inputs)
        seen = torch.zeros(count, count, dtype=torch.bool)
        for place, entry in enumerate(self.inputs):
            seen[place, entry.sees] = True
        mask = torch.zeros(len(valid), 1, length + count, length + count, dtype=torch.bool)
        mask[:, 0, :, :length] = valid[:, None]
        mask[:, 0, :length, :length] &= torch.ones(length, length).tril().bool()
        mask[:, 0, length:, length:] = seen
        mask |= torch.eye(length + count, dtype=torch.bool)
        fed = [entry.x.expand(len(valid), 1, -1) for entry in self.inputs]
        positions = torch.tensor([*range(length), *(entry.position for entry in self.inputs)])
        features = self.target.transformer(torch.cat([embeds, *fed], dim=1), positions, mask=mask)
        guided = guided_logits(self.target.head, features, self.sampling.cfg)[0]
        return [guided[length + query] for query in queries] or [guided[length - 1]]

    def begins(self, row: int) -> bool:
        alone = self.ends is None and row == 1
        return len(self.rows[row - 1]) >= (self.grid.cols if alone else self.lag)

    def feed(self, row: int, cell: int, token: int | None, *, is_hidden: bool = False) -> None:
        """Feed a token at a cell, or without one the end of the row above."""
        if token is None:
            assert self.ends is not None
            x, position, order = (
                self.ends.embedding,
                self.ends.first_position + row - 1,
                2 * cell + 1,
            )
        else:
            x, position, order = (
                self.target.embed(torch.tensor(token)),
                self.target.prompt_len + cell,
                2 * cell,
            )
        self.inputs.append(Input(x, position, row, order, is_hidden))

    def step(self) -> None:
        cols, first = self.grid.cols, len(self.inputs)
        cells: list[int | None] = []  # the cell that each input predicts
        for row, tokens in enumerate(self.rows):
            if self.fed[row] < len(tokens):
                cell = row * cols + self.fed[row]
                self.feed(row, cell, tokens[-1])
                self.fed[row] += 1
                cells.append(cell + 1 if self.fed[row] < cols else None)
            elif not tokens and self.begins(row):
                upper = (
                    self.rows[row - 1] if len(self.rows[row - 1]) == cols else self.rows[row - 2]
                )
                token = upper[-1] if self.ends is None else None
                self.feed(row, row * cols - 1, token, is_hidden=token is not None)
                cells.append(row * cols)
        for place, entry in enumerate(self.inputs[first:], first):
            entry.sees = [
                other
                for other, seen in enumerate(self.inputs)
                if other == place
                or (not seen.is_hidden and seen.order < entry.order and seen.row <= entry.row)
            ]
        for predicted, logits in zip(
            cells, self.logits(range(first, len(self.inputs))), strict=True
        ):
            if predicted is not None:
                self.rows[predicted // cols].append(self.sample(logits, predicted))
        self.passes += 1

    @torch.inference_mode()
    def run(self) -> tuple[list[int], int]:
        """The image's tokens, and its passes, the prefill included."""
        while any(len(row) < self.grid.cols for row in self.rows):
            self.step()
        return [token for row in self.rows for token in row], self.passes


NONE = 2  # in place of the code of a neighbour that is not there, or that a query does not see
CODES = 2
COMBINATIONS = (CODES + 1) ** 3


class NeighbourBody(Body):
    """Features that say which codes a query sees to the left of the next cell, above it, and to the
    upper right.
    """

    def __init__(self, config: TransformerConfig, table: Tensor) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(CODES, config.dim)
        self.embed.weight.data = torch.eye(CODES, config.dim)
        self.head = nn.Linear(COMBINATIONS, CODES, bias=False)
        self.head.weight.data = table.T.contiguous()

    def forward(
        self,
        x: Tensor,
        positions: Tensor,
        *,
        mask: Tensor | None = None,
        cache: CacheView | None = None,
        taps: Sequence[int] = (),
    ) -> Tensor:
        assert cache is not None
        assert mask is not None
        config, first = (
            self.config,
            self.config.prompt_len + self.config.rows * self.config.row_ends,
        )
        stored, _ = cache.update(0, x[:, :, None], x[:, :, None])
        codes = stored[:, 0, :, :CODES].argmax(2)  # [R, columns]
        is_end = positions >= config.positions
        cells = torch.where(
            is_end,
            (positions - config.positions + 1) * config.cols,
            positions - config.prompt_len + 1,
        )
        # the next ones
        cells, place = cells.expand(len(x), -1), (cells % config.cols).expand(len(x), -1)

        def code(others: Tensor, exists: Tensor) -> Tensor:
            columns = (first + others).clamp(0, codes.shape[1] - 1)
            is_seen = exists & (
                mask[:, 0].expand(-1, cells.shape[1], -1).gather(2, columns[..., None])[..., 0] == 0
            )
            return torch.where(is_seen, codes.gather(1, columns), NONE)

        left = torch.where(place > 0, x[..., :CODES].argmax(2), NONE)
        up = code(cells - config.cols, cells >= config.cols)
        upper_right = code(
            cells - config.cols + 1, (cells >= config.cols) & (place + 1 < config.cols)
        )
        index = (left * (CODES + 1) + up) * (CODES + 1) + upper_right
        return nn.functional.one_hot(index, COMBINATIONS).to(x.dtype)


def neighbour_target(
    rows: int, cols: int, *, row_ends: bool, reads_upper_right: bool, seed: int = 3
) -> Target:
    """A target whose images have two codes."""
    config = replace(
        BASE, dim=8, n_layers=1, n_heads=1, vocab_size=CODES, prompt_len=1, rows=rows, cols=cols,
        rope="line", row_ends=row_ends,
    )  # fmt: skip
    table = 1.3 * torch.randn(COMBINATIONS, CODES, generator=torch.Generator().manual_seed(seed))
    if not reads_upper_right:
        table = table.view(-1, CODES + 1, CODES)[:, :1].expand(-1, CODES + 1, -1).flatten(0, 1)
    row_end = torch.zeros(config.dim) if row_ends else None
    conditioner = ToyConditioner(config.prompt_len, config.dim)
    body = NeighbourBody(config, table)
    return Target(
        "neighbours", body, conditioner, ToyCodec(torch.eye(CODES)), Sampling(), row_end=row_end
    ).eval()


def image_probs(target: Target, sees_upper_right: Callable[[int, int], bool]) -> np.ndarray:
    """The probs of all images [2 ** cells], the first cell most significant, where the cells (row,
    column) for which `sees_upper_right` is false do not see their upper right neighbour.
    """
    assert isinstance(target.head, nn.Linear)
    grid, probs = target.grid, target.head.weight.T.softmax(-1).detach().double().numpy()
    images = np.array(list(np.ndindex(*[CODES] * grid.tokens))).reshape(-1, grid.rows, grid.cols)
    joint = np.ones(len(images))
    for row, col in np.ndindex(grid.rows, grid.cols):
        nothing = np.full(len(images), NONE)
        left = images[:, row, col - 1] if col else nothing
        up = images[:, row - 1, col] if row else nothing
        has_corner = row and col + 1 < grid.cols and sees_upper_right(row, col)
        corner = images[:, row - 1, col + 1] if has_corner else nothing
        joint *= probs[(left * (CODES + 1) + up) * (CODES + 1) + corner, images[:, row, col]]
    return joint
