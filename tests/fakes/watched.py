"""An engine whose rounds can be looked at, and a drafter that is nearly always right: trees that
are followed to their ends, on any target.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from search_spaces.trial import DecodingConfig
from workers.decoding.accept import AcceptResult
from workers.decoding.drafter import Drafter
from workers.decoding.engine import Engine
from workers.decoding.state import Batch, Request
from workers.decoding.statistics import Result
from workers.decoding.tree import DraftTree
from workers.models.target import Prompt, Target


class Replay(Drafter):
    """A drafter that knows what will be drawn: known tokens [image_len] by caption lead, at every
    position.

    With `errors`, every so many positions it puts another token first, and the known one second.
    """

    kind = "medusa"
    max_levels = 32

    def __init__(self, known: dict[str, Tensor], vocabulary: int, errors: int = 0) -> None:
        super().__init__()
        self.known, self.vocabulary, self.errors = known, vocabulary, errors

    def prepare(self, batch: Batch, levels: int, expanded: int) -> None:
        self.streams, self.table = (
            batch.streams,
            torch.zeros(batch.size, batch.image_len + 64, dtype=torch.int64),
        )
        batch.buffers.add(self, "table")

    def admit(
        self,
        indices: Tensor,
        prompt: Prompt,
        captions: list[str],
        features: Tensor,
        first_tokens: Tensor,
    ) -> None:
        self.table = self.table.clone()
        for row, name in zip(indices.tolist(), captions, strict=True):
            self.table[row, : len(self.known[name])] = self.known[name]

    def root_logits(self, batch: Batch) -> Tensor:
        self.level = 0
        return self.at(batch)

    def expand(self, batch: Batch, tokens: Tensor, parents: Tensor | None) -> Tensor:
        self.level += 1
        return self.at(batch)[:, None].expand(-1, tokens.shape[1], -1)

    def at(self, batch: Batch) -> Tensor:
        place = batch.emitted[:, None] + self.level
        token = self.table.gather(1, place)
        logits = (torch.arange(self.vocabulary) * 0.6180339 + place * 0.37) % 1  # no two alike
        logits = logits.scatter(1, token, 30.0)
        if self.errors:
            wrong = torch.where(place % self.errors == 0, (token + 7) % self.vocabulary, token)
            logits = logits.scatter(1, wrong, 31.0)
        return logits

    def commit(self, batch: Batch, tokens: Tensor, features: Tensor, counts: Tensor) -> None:
        pass


class RecordingEngine(Engine):
    """An engine that keeps, of every round of its first row, the image so far, the tree and the
    guided logits.
    """

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type]
        self.rounds: list[tuple[list[int], DraftTree, Tensor]] = []

    def commit(
        self, batch: Batch, tree: DraftTree, result: AcceptResult, logits: Tensor, features: Tensor
    ) -> Tensor:
        self.rounds.append((batch.tokens[0, : int(batch.emitted[0])].tolist(), tree, logits[0]))
        return super().commit(batch, tree, result, logits, features)

    def paths(self) -> list[tuple[list[int], Tensor]]:
        """Every slot that was scored: the image tokens up to it, along its own path, and the guided
        logits [V].
        """
        found = []
        for image, tree, logits in self.rounds:
            parents = tree.shape.parents.expand(len(tree.tokens), -1)[0].tolist()
            tokens, exists = tree.tokens[0].tolist(), tree.exists[0].tolist()
            for slot in range(len(tokens) + 1):
                path, node = [], slot - 1
                while node >= 0:
                    path.append(node)
                    node = parents[node]
                if all(exists[n] for n in path) and len(image) + len(path) < self.image_len:
                    found.append((image + [tokens[n] for n in reversed(path)], logits[slot]))
        return found


def draw(
    target: Target,
    setting: Mapping[str, object],
    drafter: Drafter | None,
    captions: Sequence[str],
    batch: int = 1,
) -> tuple[dict[str, Result], RecordingEngine]:
    """Results by caption, and the engine that drew them."""
    engine = RecordingEngine(
        target, DecodingConfig.from_mapping(setting), drafter, seed=3, batch_size=batch
    )
    results = engine.run([Request(number, caption) for number, caption in enumerate(captions)])
    return {result.request.caption: result for result in results}, engine
