"""Conditioners of captions: what they read, what they refuse, and their embeddings."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from workers.models.families.conditioners import (
    NGramConditioner,
    WordConditioner,
    build_conditioner,
)

BUCKETS = 500


def test_conditioners_say_what_they_cannot_read() -> None:
    def message(read: Callable[[list[str]], Tensor], caption: str) -> str:
        with pytest.raises(ValueError) as caught:
            read([caption])
        return str(caught.value)

    words = WordConditioner(4, ["a", "red", "ball"], 3)
    assert words.codes(["A red ball!", "ball"]).tolist() == [[1, 2, 3], [3, 0, 0]]
    assert "unknown word 'blue'" in message(words.codes, "a blue ball")
    assert "0 words" in message(words.codes, " ")
    assert "4 words" in message(words.codes, "a red red ball")
    prompt = words(["ball"])
    assert prompt.embeds.shape == (1, 3, 4)
    assert bool(prompt.valid.all())
    assert torch.equal(words.null(prompt).embeds[0], words.nothing)


def conditioner(length: int = 4) -> NGramConditioner:
    torch.manual_seed(0)
    made = NGramConditioner(8, BUCKETS, length)
    assert made.places is not None
    torch.nn.init.normal_(made.places)
    return made


def embedding(made: NGramConditioner, word: str) -> Tensor:
    """A word's embedding by its definition, without its place."""
    marked = f"<{word}>"
    pieces = {marked[a:b] for a in range(len(marked)) for b in range(a + 3, a + 7)}
    whole = {piece for piece in pieces if len(piece) >= 3} | {marked}
    rows = [made.values.weight[1 + zlib.crc32(piece.encode()) % BUCKETS] for piece in whole]
    total: Tensor = torch.stack(rows).sum(0)
    return total / math.sqrt(len(rows))


def test_a_words_embedding_is_that_of_its_n_grams() -> None:
    made = conditioner()
    assert made.places is not None
    for caption in ("a", "A strawberry, food-fruit", "Åland ★ 7 counterclockwise"):
        words = [word.strip("★,").lower() for word in caption.replace("-", " ").split()]
        words = [word for word in words if word]
        prompt = made([caption, "other words"])
        for place in range(4):
            word = words[place] if place < len(words) else None
            own = made.values.weight[0] if word is None else embedding(made, word)
            torch.testing.assert_close(prompt.embeds[0, place], own + made.places[place])
        assert bool(prompt.valid.all())


def test_captions_of_new_words_are_read_up_to_the_models_length() -> None:
    made = conditioner(3)
    made.check(["word " * 100])
    assert torch.equal(made(["one two three four"]).embeds, made(["one two three five"]).embeds)
    for nothing in ("", "!? ♥"):
        with pytest.raises(ValueError, match="no words"):
            made.check([nothing])
    unit = [
        torch.nn.functional.normalize(embedding(conditioner(), word), dim=0)
        for word in ("strawberry", "strawberries", "umbrella")
    ]
    assert unit[0] @ unit[1] > 0.5 > unit[0] @ unit[2], "words of one stem are alike"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_that_reads_n_grams_is_built_from_its_settings(dtype: torch.dtype) -> None:
    made = conditioner().to(dtype)
    again = build_conditioner(made.settings(), 8).to(dtype)
    again.load_state_dict(made.state_dict())
    prompt = again(["a new word"])
    assert prompt.embeds.dtype == dtype
    assert torch.equal(prompt.embeds, made(["a new word"]).embeds)
    assert torch.equal(again.null(prompt).embeds[0], made.nothing)
