"""Emu3 through transformers' own forward, its line ends carried along: its `generate` draws the
same tokens.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoTokenizer

from search_spaces.trial import Sampling
from tests.fakes.tiny_foreign import EMU3_CODES, MODES, emu3
from tests.fakes.watched import Replay, draw
from workers.decoding.row_ends import teacher_forced
from workers.models.checkpoint_files import WeightsError
from workers.models.families.emu3 import NEGATIVE, STYLE, Emu3
from workers.models.target import Target

CAPTIONS = ["a red ball", "a cat"]
GREEDY = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "cfg": 3.0}
ROWS, COLS = 3, 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("emu3")


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    torch.manual_seed(0)
    return emu3(folder)


@pytest.fixture(scope="module")
def target(folder: Path, reference: Any) -> Target:
    return load(folder)


def load(folder: Path, width: int = 8 * COLS) -> Target:
    return Emu3(str(folder), width=width, height=8 * ROWS, prompt_tokens=80).load(
        torch.device("cpu"), torch.float32
    )


@pytest.fixture(scope="module")
def sequences(folder: Path, reference: Any) -> dict[str, Tensor]:
    """transformers' own greedy sequences [rows * (cols + 1)], forced as its documentation forces
    them.
    """
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    mapping = reference.model.vocabulary_mapping
    start = f"<|image start|>{ROWS}*{COLS}<|image token|>"

    def ids(text: str) -> Tensor:
        return torch.tensor(
            [tokenizer.encode(f"<|extra_203|>{text}{start}", add_special_tokens=False)]
        )

    found = {}
    for caption in CAPTIONS:
        prompt, negative = ids(caption + STYLE), ids(NEGATIVE)

        def allowed(_: int, so_far: Tensor, first: int = prompt.shape[1]) -> list[int]:
            line_end = (len(so_far) - first + 1) % (COLS + 1) == 0
            return [mapping.eol_token_id] if line_end else list(mapping.image_tokens)

        out = reference.generate(
            prompt, attention_mask=torch.ones_like(prompt), do_sample=False, guidance_scale=3.0,
            negative_prompt_ids=negative, negative_prompt_attention_mask=torch.ones_like(negative),
            prefix_allowed_tokens_fn=allowed, max_new_tokens=ROWS * (COLS + 1),
        )  # fmt: skip
        found[caption] = out[0, prompt.shape[1] :]
    return found


@pytest.fixture(scope="module")
def generated(reference: Any, sequences: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same as codes, without line ends."""
    read = reference.model.vocabulary_mapping.convert_bpe2img
    return {
        key: read(value.view(ROWS, COLS + 1)).flatten().long() for key, value in sequences.items()
    }


def test_vanilla_draws_what_transformers_generates(
    target: Target, generated: dict[str, Tensor]
) -> None:
    assert target.name == "emu3-32x24-32x2"
    assert target.sampling == Sampling(temperature=1.0, top_k=2048, cfg=3.0)
    assert (target.grid.rows, target.grid.cols, target.vocab_size) == (ROWS, COLS, EMU3_CODES)
    results, _ = draw(target, {"sampling": GREEDY}, None, CAPTIONS, batch=2)
    assert not torch.equal(generated[CAPTIONS[0]], generated[CAPTIONS[1]]), "captions must matter"
    for caption, result in results.items():
        assert torch.equal(result.tokens, generated[caption])


@pytest.mark.parametrize("mode", MODES)
def test_every_way_of_drafting_draws_the_same(
    target: Target, generated: dict[str, Tensor], mode: str
) -> None:
    drafter = (
        Replay(generated, EMU3_CODES, errors=3) if MODES[mode]["drafter"] == "medusa" else None
    )
    results, _ = draw(target, {**MODES[mode], "sampling": GREEDY}, drafter, CAPTIONS, batch=2)
    for caption, result in results.items():
        assert torch.equal(result.tokens, generated[caption])
    if drafter is not None:
        assert max(result.statistics.mean_accepted_length for result in results.values()) > 1.5


def test_teacher_forced_features_are_the_reference_models(
    target: Target, reference: Any, sequences: dict[str, Tensor], generated: dict[str, Tensor]
) -> None:
    """What EAGLE drafters are trained on; the feature before a row's first token is that of the
    line's end.
    """
    prompt = target.encode(CAPTIONS[:1], guided=False)
    features = teacher_forced(target, prompt, generated[CAPTIONS[0]][None])
    embeds = torch.cat(
        [prompt.embeds, reference.get_input_embeddings()(sequences[CAPTIONS[0]][None])], dim=1
    )
    seen = torch.nn.functional.pad(prompt.valid, (0, ROWS * (COLS + 1)), value=True)
    out = reference.model.text_model(
        inputs_embeds=embeds, attention_mask=seen.long()
    ).last_hidden_state
    image = out[:, target.prompt_len :].view(ROWS, COLS + 1, -1)
    # a row's last token: its end
    wanted = torch.cat([image[:, : COLS - 1], image[:, COLS:]], dim=1).flatten(0, 1)
    assert torch.allclose(features[0, target.prompt_len :], wanted, atol=1e-4)


def test_images_are_unnormalised_by_the_folders_own_figures(target: Target, reference: Any) -> None:
    ids = torch.randint(EMU3_CODES, (2, ROWS * COLS), generator=torch.Generator().manual_seed(1))
    raw = reference.model.vqmodel.decode(ids.view(2, ROWS, COLS))
    assert raw.std() > 0.05
    assert torch.allclose(target.decode(ids), (raw * 0.25 + 0.5).clamp(0, 1), atol=1e-5)


def test_what_is_missing_is_refused_in_words(folder: Path, reference: Any, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    with pytest.raises(ValueError, match="multiples of 8 px"):
        load(copy, width=36)
    (copy / "preprocessor_config.json").write_text("{}")
    with pytest.raises(WeightsError, match="image_mean is missing"):
        load(copy)
    said = json.loads((copy / "config.json").read_text())
    del said["vocabulary_map"]["<|visual token 000007|>"]
    (copy / "config.json").write_text(json.dumps(said))
    with pytest.raises(WeightsError, match=r"vocabulary_map lacks 1 tokens.*token 000007"):
        load(copy)
