"""Janus through transformers' own forward: its `generate` draws the same tokens, and so does every
way of drafting.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoTokenizer, LlamaConfig, Qwen2Config

from search_spaces.drafters import Vertical
from search_spaces.trial import DecodingConfig, Sampling
from tests.fakes.tiny_foreign import JANUS_CODES, JANUS_SIDE, MODES, janus
from tests.fakes.toys import toy_branch
from tests.fakes.watched import Replay, draw
from workers.decoding.engine import Engine
from workers.decoding.state import Request
from workers.drafters.eagle import EagleDrafter
from workers.drafters.eagle3 import Eagle3Drafter
from workers.drafters.vertical import VerticalHead
from workers.loading.dry_run import footprint
from workers.loading.models import Models
from workers.models.checkpoint_files import WeightsError, shapes_only
from workers.models.families.janus import Janus, JanusPrompts
from workers.models.hf_decoder import decoder_config
from workers.models.target import Target
from workers.training.drafters import combine, new_eagle, new_eagle3
from workers.training.vertical import mixed_logits, token_logits

CAPTIONS = ["a red ball", "a cat", "a blue cat, a ball"]
GREEDY = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "cfg": 5.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("janus")


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    torch.manual_seed(0)
    return janus(folder)


@pytest.fixture(scope="module")
def target(folder: Path, reference: Any) -> Target:
    return load(folder)


def load(folder: Path) -> Target:
    return Janus(str(folder), prompt_tokens=40).load(torch.device("cpu"), torch.float32)


@pytest.fixture(scope="module")
def generated(folder: Path, reference: Any) -> dict[str, Tensor]:
    """transformers' own greedy images, of prompts padded on the left."""
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, padding_side="left")
    prompts = [
        f"<begin of sentence><|User|>: {text}\n\n<|Assistant|>:<begin_of_image>"
        for text in CAPTIONS
    ]
    inputs = tokenizer(prompts, add_special_tokens=False, return_tensors="pt", padding=True)
    tokens = reference.generate(
        inputs["input_ids"],
        attention_mask=inputs["attention_mask"],
        generation_mode="image",
        do_sample=False,
        guidance_scale=5,
        max_length=200,
    )
    return dict(zip(CAPTIONS, tokens, strict=True))


def vanilla(target: Target) -> dict[str, Tensor]:
    results, _ = draw(target, {"sampling": GREEDY}, None, CAPTIONS, batch=2)
    return {caption: result.tokens for caption, result in results.items()}


def test_vanilla_draws_what_transformers_generates(
    target: Target, generated: dict[str, Tensor]
) -> None:
    assert target.name == "janus-32x2"
    assert target.sampling == Sampling(temperature=1.0, cfg=5.0)
    drawn = vanilla(target)
    assert len({tuple(tokens.tolist()) for tokens in drawn.values()}) == 3, "captions must matter"
    for caption in CAPTIONS:
        assert torch.equal(drawn[caption], generated[caption])


@pytest.mark.parametrize("mode", MODES)
def test_every_way_of_drafting_draws_the_same(
    target: Target, generated: dict[str, Tensor], mode: str
) -> None:
    drafter = (
        Replay(generated, JANUS_CODES, errors=3) if MODES[mode]["drafter"] == "medusa" else None
    )
    results, _ = draw(target, {**MODES[mode], "sampling": GREEDY}, drafter, CAPTIONS, batch=2)
    for caption, result in results.items():
        assert torch.equal(result.tokens, generated[caption])
    if drafter is not None:  # or no draft was ever kept, and the cache never moved
        assert max(result.statistics.mean_accepted_length for result in results.values()) > 1.5


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_an_eagle_layer_drafts_for_it(
    target: Target, generated: dict[str, Tensor], kind: str
) -> None:
    """As `specfrontier train eagle` starts one: it knows the sizes from the config, and has no
    layer to start from.
    """
    if kind == "eagle":
        drafter = EagleDrafter(target, new_eagle(target, seed=0))
    else:
        drafter = Eagle3Drafter(target, new_eagle3(target, seed=0), filler=None)
    drafter.eval().requires_grad_(False)
    setting = {"drafter": kind, "tree": {"policy": "dynamic", "depth": 3, "width": 2, "nodes": 6}}
    results, _ = draw(target, {**setting, "sampling": GREEDY}, drafter, CAPTIONS, batch=2)
    for caption, result in results.items():
        assert torch.equal(result.tokens, generated[caption])


def test_taps_are_the_inputs_of_the_librarys_layers(target: Target) -> None:
    inputs: list[Tensor] = []
    layers: Any = target.transformer.decoder.layers  # type: ignore[union-attr]
    hooks = [
        layer.register_forward_pre_hook(lambda module, args: inputs.append(args[0]))
        for layer in layers
    ]
    x, order = target.encode(CAPTIONS[:2], guided=False).embeds, torch.arange(target.prompt_len)
    plain = target.transformer(x, order)
    inputs.clear()
    tapped = target.transformer(x, order, taps=(1, 0))
    for hook in hooks:
        hook.remove()
    assert torch.equal(tapped, torch.cat([plain, inputs[1], inputs[0]], dim=-1))


def test_a_pass_without_a_mask_over_cached_prompts_sees_them_all(target: Target) -> None:
    body, prompt = target.transformer, target.encode(CAPTIONS[:1], guided=False).embeds[:, -4:]

    def features(mask: Tensor | None) -> Tensor:
        cache = body.new_cache(1, 4).prompts(torch.tensor([0]), 4)
        out: Tensor = body(prompt, torch.arange(4), mask=mask, cache=cache)
        return out

    everything = torch.ones(1, 1, 4, 4, dtype=torch.bool)
    torch.testing.assert_close(features(None), features(everything))
    assert not torch.allclose(features(None), features(everything.tril()))


@pytest.mark.parametrize("mode", ["static", "dynamic"])
def test_a_tree_pass_scores_each_path_as_alone(
    target: Target, generated: dict[str, Tensor], reference: Any, mode: str
) -> None:
    caption = CAPTIONS[0]
    setting = {**MODES[mode], "sampling": GREEDY}
    _, engine = draw(target, setting, Replay(generated, JANUS_CODES, errors=3), [caption])
    prompt = target.encode([caption], guided=True)
    paths = engine.paths()
    assert len({len(tokens) for tokens, _ in paths}) > 5
    for tokens, logits in paths:
        image = reference.prepare_embeddings_for_image_generation(torch.tensor([tokens]))
        embeds = torch.cat([prompt.embeds, image.expand(2, -1, -1)], dim=1)
        seen = F.pad(prompt.valid, (0, len(tokens)), value=True)
        out = reference.model.language_model(
            inputs_embeds=embeds, attention_mask=seen.long()
        ).last_hidden_state
        with_text, without = reference.model.generation_head(out[:, -1])
        assert torch.allclose(logits, without + 5.0 * (with_text - without), atol=1e-3, rtol=1e-4)


def test_images_are_the_models_own(target: Target, reference: Any) -> None:
    ids = torch.randint(JANUS_CODES, (2, JANUS_SIDE**2), generator=torch.Generator().manual_seed(1))
    images = reference.decode_image_tokens(ids).permute(0, 3, 1, 2)
    assert torch.allclose(target.decode(ids), (images + 1).div(2).clamp(0, 1), atol=1e-6)
    assert torch.allclose(target.codebook.norm(dim=1), torch.ones(JANUS_CODES))


def test_half_precision_keeps_rotations_whole(folder: Path, reference: Any) -> None:
    target = Janus(str(folder), prompt_tokens=40).load(torch.device("cpu"), torch.bfloat16)
    buffers = {
        name: b.dtype for name, b in target.transformer.named_buffers() if "inv_freq" in name
    }
    assert buffers
    assert set(buffers.values()) == {torch.float32}
    assert target.dtype == torch.bfloat16
    results, _ = draw(target, {"sampling": GREEDY}, None, CAPTIONS[:1])
    assert results[CAPTIONS[0]].tokens.shape == (JANUS_SIDE**2,)


def test_shapes_can_be_had_without_numbers(folder: Path, reference: Any) -> None:
    with shapes_only():
        sketch = Janus(str(folder)).load(torch.device("meta"), torch.bfloat16)
    assert sketch.device.type == "meta"
    assert sketch.transformer.config.dim == 32
    assert {value.dtype for value in sketch.transformer.parameters()} == {torch.bfloat16}
    needed = footprint(Models(sketch, {}, {}), DecodingConfig(sampling=sketch.sampling), 2, 2)
    assert needed.cache > 0
    whole = load(folder)
    assert {name: value.shape for name, value in sketch.state_dict().items()} == {
        name: value.shape for name, value in whole.state_dict().items()
    }


def copied(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "copy"))


def break_nothing(copy: Path) -> None:
    shutil.rmtree(copy)


def break_family(copy: Path) -> None:
    said = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(said | {"model_type": "emu3"}))


def break_tokenizer(copy: Path) -> None:
    (copy / "tokenizer.json").unlink()
    (copy / "tokenizer_config.json").unlink()


def break_file(copy: Path) -> None:
    (copy / "model.safetensors").write_bytes((copy / "model.safetensors").read_bytes()[:-100])


def break_tensor(copy: Path) -> None:
    tensors = load_file(copy / "model.safetensors")
    del tensors["model.generation_head.proj_out.weight"]
    save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})


def break_unknown(copy: Path) -> None:
    tensors = load_file(copy / "model.safetensors")
    save_file(
        {**tensors, "model.generation_head.extra.weight": torch.zeros(2)},
        copy / "model.safetensors",
        metadata={"format": "pt"},
    )


def break_size(copy: Path) -> None:
    said = json.loads((copy / "config.json").read_text())
    said["text_config"]["intermediate_size"] += 8
    (copy / "config.json").write_text(json.dumps(said))


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (break_nothing, "config.json: no such file"),
        (break_family, "a 'emu3', not a 'janus'"),
        (break_tokenizer, "no tokenizer that can be read|has no bos_token"),
        (break_file, "truncated"),
        (break_tensor, "lacks model.generation_head.proj_out.weight"),
        (break_unknown, "unknown to its config.json: model.generation_head.extra.weight"),
        (break_size, "another size than in config.json"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_broken_folder_is_refused_in_words(
    folder: Path, reference: Any, tmp_path: Path, broken: Any, words: str
) -> None:
    copy = copied(folder, tmp_path)
    broken(copy)
    with pytest.raises(WeightsError, match=words) as caught:
        load(copy)
    assert str(copy) in str(caught.value)
    # as `doctor` and `launch --check` do
    with shapes_only(), pytest.raises(WeightsError, match=words):
        load(copy)


def test_numbers_that_are_not_finite_are_refused(
    folder: Path, reference: Any, tmp_path: Path
) -> None:
    copy = copied(folder, tmp_path)
    tensors = load_file(copy / "model.safetensors")
    tensors["model.vqmodel.post_quant_conv.bias"][0] = torch.nan
    save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(WeightsError, match="NaN or infinite values"):
        load(copy)


def test_the_codec_keeps_the_files_own_numbers(
    folder: Path, reference: Any, target: Target
) -> None:
    half = Janus(str(folder), prompt_tokens=40).load(torch.device("cpu"), torch.bfloat16)
    assert torch.equal(half.codebook, target.codebook)


def test_rotations_and_layers_that_trees_cannot_do_are_refused() -> None:
    sizes: dict[str, Any] = {"codes": 8, "prompt_len": 1, "rows": 2, "cols": 2}
    assert decoder_config(LlamaConfig(), **sizes).dim == 4096
    rope = {
        "rope_type": "dynamic",
        "rope_theta": 1e4,
        "factor": 2.0,
        "original_max_position_embeddings": 64,
    }
    with pytest.raises(ValueError, match="depend on the sequence length"):
        decoder_config(LlamaConfig(rope_parameters=rope), **sizes)
    with pytest.raises(ValueError, match="do not attend to all positions"):
        decoder_config(
            Qwen2Config(layer_types=["sliding_attention", "full_attention"], num_hidden_layers=2),
            **sizes,
        )


def test_prompts_are_the_official_chat_of_a_stripped_caption() -> None:
    class Letters:
        """A tokenizer of single characters, for which every space counts."""

        def special_token(self, role: str) -> str:
            return {"bos_token": "<", "boi_token": ">", "pad_token": "_"}[role]

        def __call__(self, text: str) -> list[int]:
            return list(text.encode())

    tokenizer: Any = Letters()
    prompts = JanusPrompts(torch.nn.Embedding(128, 4), 80, tokenizer).token_ids(
        ["a cat", " a cat\n"]
    )
    assert prompts == [list(b"<<|User|>: a cat\n\n<|Assistant|>:>")] * 2


def test_a_vertical_branch_stands_next_to_the_last_layer(target: Target) -> None:
    """Diagonal decoding of a decoder that has no tap after its last layer."""
    torch.manual_seed(3)
    branch = toy_branch(target).eval().requires_grad_(False)
    assert branch.start == target.transformer.config.n_layers - 1
    assert len(branch.adapters) == 14
    config = DecodingConfig(Vertical(), sampling=Sampling(temperature=0.0, cfg=2.0))
    engine = Engine(target, config, VerticalHead(target, branch))
    (result,) = engine.run([Request(0, "a red ball")])
    with torch.no_grad():
        prompt = target.encode(["a red ball"], guided=True)
        found = token_logits(target, branch, prompt, result.tokens.repeat(2, 1))
        logits = combine(mixed_logits(branch, found), 2.0)
    assert torch.equal(logits[0].argmax(-1), result.tokens)
    assert result.statistics.passes + 1 == 2 * JANUS_SIDE - 1


def test_captions_that_do_not_fit_are_refused(target: Target) -> None:
    with pytest.raises(ValueError, match="caption 0 is empty"):
        target.encode([" "], guided=False)
    with pytest.raises(ValueError, match="the limit is 40: shorten it"):
        target.encode(["a ball " * 40], guided=False)
