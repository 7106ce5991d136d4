"""SimpleAR and Liquid through transformers' own forward: logits and whole images of its models,
guidance and sampling as in the published code, and files of another vocabulary.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoTokenizer

from search_spaces.params import ConfigError
from search_spaces.trial import DecodingConfig, Sampling
from tests.fakes.tiny_extended import (
    LIQUID_CODES,
    LIQUID_TOKENS,
    SIMPLEAR_CODES,
    SIMPLEAR_TOKENS,
    liquid,
    simplear,
)
from tests.fakes.tiny_foreign import MODES
from tests.fakes.watched import Replay, draw
from workers.decoding.sampling import apply_cfg, to_probs
from workers.loading.dry_run import footprint
from workers.loading.models import Models
from workers.loading.models_yaml import published_entry, shape_only_models
from workers.models.checkpoint_files import WeightsError, shapes_only
from workers.models.families.extended_lm import ExtendedLM
from workers.models.families.liquid import Liquid
from workers.models.families.simplear import SimpleAR
from workers.models.target import Target

CPU = torch.device("cpu")
CAPTIONS = ["a red ball", "a cat"]
SIDE = 4


@dataclass(frozen=True)
class Case:
    """A family with a tiny checkpoint, and what its published code does."""

    family: type[ExtendedLM]
    codes: int
    write: Callable[[Path], Any]
    prompt: Callable[[str], str]
    null: str
    bos: list[int]  # ids that the published code's tokenizer adds
    guide: Callable[[Tensor, Tensor, float], Tensor]  # of logits of all ids
    sampling: Sampling


def on_log_probs(cond: Tensor, uncond: Tensor, cfg: float) -> Tensor:
    c, u = cond.log_softmax(-1), uncond.log_softmax(-1)
    return cfg * (c - u) + u


def on_logits(cond: Tensor, uncond: Tensor, cfg: float) -> Tensor:
    return uncond + (cond - uncond) * cfg


CASES = {
    "simplear": Case(
        SimpleAR,
        SIMPLEAR_CODES,
        simplear,
        lambda caption: f"<|t2i|>A highly realistic image of {caption}<|soi|>",
        "<|t2i|>An image of aerial view, overexposed, low quality, deformation, a poor composition, "
        "bad hands, bad teeth, bad eyes, bad limbs, distortion<|soi|>",
        [],
        on_log_probs,
        Sampling(temperature=1.0, top_k=64_000, top_p=1.0, cfg=6.0),
    ),
    "liquid": Case(
        Liquid,
        LIQUID_CODES,
        liquid,
        lambda caption: f"{caption} Generate an image based on this description.<boi>",
        "<unconditional><boi>",
        [2],
        on_logits,
        Sampling(temperature=0.99, top_k=4096, top_p=0.96, cfg=7.0),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Checkpoint:
    """A tiny checkpoint on disk."""

    case: Case
    folder: Path
    reference: Any  # transformers' own model

    @property
    def words(self) -> int:
        return int(self.reference.config.vocab_size) - self.case.codes

    @property
    def codec(self) -> str:
        files = {"simplear": "decoder.jit", "liquid": "vqgan.ckpt"}
        return str(self.folder / files[self.case.family.kind])

    def entry(self, **keys: Any) -> ExtendedLM:
        given = {"checkpoint": str(self.folder), "image_size": 16 * SIDE, "prompt_tokens": 192}
        if self.case.family is Liquid:
            given["vq"] = self.codec
        return self.case.family.from_mapping({**given, **keys})

    def ids(self, text: str) -> Tensor:
        tokenizer: Any = AutoTokenizer.from_pretrained(self.folder)
        plain = tokenizer.encode(text, add_special_tokens=False)
        return torch.tensor([[*self.case.bos, *plain]])

    def model(self, dtype: torch.dtype) -> Any:
        return type(self.reference).from_pretrained(self.folder, dtype=dtype).eval()


@pytest.fixture(scope="module", params=CASES)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    case = CASES[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    return Checkpoint(case, folder, case.write(folder))


@pytest.fixture(scope="module")
def target(made: Checkpoint) -> Target:
    return made.entry().load(CPU, torch.float32)


@torch.no_grad()
def greedy_image(made: Checkpoint, model: Any, caption: str) -> Tensor:
    """Codes [16] by the published rule: all ids are guided, and the most likely code is next."""
    streams = [made.ids(made.case.prompt(caption)), made.ids(made.case.null)]
    codes = []
    for _ in range(SIDE**2):
        cond, uncond = (model(ids).logits[0, -1] for ids in streams)
        guided = made.case.guide(cond, uncond, made.case.sampling.cfg)
        codes.append(guided[made.words :].argmax())
        streams = [torch.cat([ids, codes[-1][None, None] + made.words], 1) for ids in streams]
    return torch.stack(codes)


@pytest.fixture(scope="module")
def generated(made: Checkpoint) -> dict[str, Tensor]:
    return {caption: greedy_image(made, made.reference, caption) for caption in CAPTIONS}


def greedy(made: Checkpoint) -> dict[str, Any]:
    return replace(made.case.sampling, temperature=0.0).to_mapping()


@pytest.mark.parametrize(
    ("dtype", "error"), [(torch.float32, 1e-4), (torch.float64, 1e-11)], ids=["float32", "float64"]
)
def test_logits_and_images_are_transformers_own(
    made: Checkpoint, dtype: torch.dtype, error: float
) -> None:
    target, model = made.entry().load(CPU, dtype), made.model(dtype)
    prompt = made.ids(made.case.prompt(CAPTIONS[0]))
    image = torch.randint(made.case.codes, (1, SIDE**2), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        expected = model(torch.cat([prompt, made.words + image], 1)).logits[..., made.words :]
        words = target.encode(CAPTIONS[:1], guided=False).embeds[:, -prompt.shape[1] :]
        x = torch.cat([words, target.embed(image)], 1)
        logits = target.head(target.transformer(x, torch.arange(x.shape[1])))
    assert logits.dtype == dtype
    assert float(expected.abs().max()) > 5
    assert float((logits - expected).abs().max()) < error
    drawn, _ = draw(target, {"sampling": greedy(made)}, None, CAPTIONS, batch=2)
    assert not torch.equal(drawn[CAPTIONS[0]].tokens, drawn[CAPTIONS[1]].tokens)
    for caption in CAPTIONS:
        assert torch.equal(drawn[caption].tokens, greedy_image(made, model, caption))


def test_the_target_is_as_published(made: Checkpoint, target: Target) -> None:
    assert target.name == f"{made.case.family.kind}-64-32x2"
    assert target.sampling == made.case.sampling
    assert (target.grid.rows, target.grid.cols) == (SIDE, SIDE)
    assert target.vocab_size == len(target.codebook) == made.case.codes
    images = target.decode(torch.arange(2 * SIDE**2).view(2, -1))
    assert images.shape == (2, 3, 64, 64)
    assert images.std() > 0.01
    sizes = [256, 512, 768, 1024]
    assert [made.entry(image_size=size).image_size // 16 for size in sizes] == [16, 32, 48, 64]
    with pytest.raises(ConfigError, match="multiple of 16"):
        made.entry(image_size=250)


def test_prompts_are_the_published_ones(made: Checkpoint, target: Target) -> None:
    conditioner: Any = target.conditioner
    expected = [made.ids(made.case.prompt(caption))[0].tolist() for caption in CAPTIONS]
    assert conditioner.token_ids(CAPTIONS) == expected
    prompt = target.encode(CAPTIONS, guided=True)
    null = made.ids(made.case.null)
    seen = prompt.valid.sum(1).tolist()
    assert seen == [*map(len, expected), null.shape[1], null.shape[1]]
    with torch.no_grad():
        rows = made.reference.get_input_embeddings()(null)
    torch.testing.assert_close(prompt.embeds[-1:, -null.shape[1] :], rows)
    with pytest.raises(ValueError, match="prompt_tokens"):
        made.entry(prompt_tokens=8).load(CPU, torch.float32).encode(CAPTIONS, guided=False)


def test_guidance_and_sampling_are_the_published_ones(made: Checkpoint, target: Target) -> None:
    """In a few lines of their own, of all ids: those of texts are then left out, which keeps the
    ratios of the codes.
    """
    generator = torch.Generator().manual_seed(4)
    cond, uncond = (
        0.15 * torch.randn(2, 3, made.words + made.case.codes, generator=generator).double()
    )
    guided = made.case.guide(cond, uncond, made.case.sampling.cfg) / made.case.sampling.temperature
    if made.case.family is SimpleAR:
        probs = guided.softmax(-1)[:, made.words :]
    else:
        guided[:, : made.words] = -torch.inf
        guided[guided < guided.topk(4096).values[:, -1:]] = -torch.inf
        ordered, order = guided.softmax(-1).sort(descending=True)
        removed = torch.cumsum(ordered, 1).roll(1, 1) > 0.96
        removed[:, 0] = False
        probs = guided.softmax(-1).masked_fill(removed.gather(1, order.argsort(1)), 0)
        probs = probs[:, made.words :]
        assert 100 < int((probs > 0).sum(1).max()) < 4096, "both filters remove some"
    both = torch.cat([cond, uncond])[:, made.words :]
    found = to_probs(apply_cfg(both, target.sampling.cfg), target.sampling)
    expected = probs / probs.sum(1, keepdim=True)
    torch.testing.assert_close(found.double(), expected, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("mode", MODES)
def test_every_way_of_drafting_draws_the_same(
    made: Checkpoint, target: Target, generated: dict[str, Tensor], mode: str
) -> None:
    drafter = None
    if MODES[mode]["drafter"] == "medusa":
        drafter = Replay(generated, made.case.codes, errors=3)
    results, _ = draw(target, {**MODES[mode], "sampling": greedy(made)}, drafter, CAPTIONS, batch=2)
    for caption, result in results.items():
        assert torch.equal(result.tokens, generated[caption])
    if drafter is not None:
        assert max(result.statistics.mean_accepted_length for result in results.values()) > 1.5


def test_half_precision_embeds_as_the_library_does(made: Checkpoint) -> None:
    """A scale of embeddings is rounded before it multiplies them."""
    half = made.entry().load(CPU, torch.bfloat16)
    embedding = made.model(torch.bfloat16).get_input_embeddings()
    rotations = {
        value.dtype for name, value in half.transformer.named_buffers() if "inv_freq" in name
    }
    assert rotations == {torch.float32}
    codes = torch.arange(0, made.case.codes, 97)
    with torch.no_grad():
        assert torch.equal(half.embed(codes), embedding(made.words + codes))
    results, _ = draw(half, {"sampling": greedy(made)}, None, CAPTIONS[:1])
    assert results[CAPTIONS[0]].tokens.shape == (SIDE**2,)


def test_the_type_of_a_file_does_not_change_the_scale(made: Checkpoint, tmp_path: Path) -> None:
    """Weights in bfloat16, embedded in float32."""
    made.model(torch.bfloat16).save_pretrained(tmp_path)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(made.folder / file, tmp_path)
    target = made.entry(checkpoint=str(tmp_path), vq=made.codec).load(CPU, torch.float32)
    expected = replace(made, folder=tmp_path).model(torch.float32).get_input_embeddings()
    with torch.no_grad():
        assert torch.equal(target.embed.weight[0], expected(torch.tensor(made.words)))


def test_a_dry_run_has_the_shapes_of_the_files(made: Checkpoint, target: Target) -> None:
    with shapes_only():
        sketch = made.entry().load(torch.device("meta"), torch.float32)
    assert {name: value.shape for name, value in sketch.state_dict().items()} == {
        name: value.shape for name, value in target.state_dict().items()
    }
    assert all(value.is_meta for value in sketch.state_dict().values())
    needed = footprint(Models(sketch, {}), DecodingConfig(sampling=sketch.sampling), 2, 2)
    assert needed.cache > 0
    assert needed.pictures >= 2 * 3 * 64**2 * 4


@pytest.mark.parametrize(
    ("name", "millions", "tokens"),
    [("simplear-0.5b", 551, 4096), ("simplear-1.5b", 1642, 4096), ("liquid-7b", 8563, 1024)],
)
def test_published_sizes_need_no_files(name: str, millions: int, tokens: int) -> None:
    """Parameters of Qwen2.5 and Gemma with the codes' rows, head and embedding counted once."""
    models = shape_only_models(published_entry(name), torch.bfloat16)
    target = models.target
    numbers = sum(value.numel() for value in target.transformer.parameters())
    numbers += sum(value.numel() for value in target.conditioner.parameters())
    numbers -= target.head.weight.numel()  # type: ignore[operator]
    assert numbers == pytest.approx(millions * 1e6, rel=0.01)
    assert target.grid.tokens == tokens
    assert target.dtype == torch.bfloat16
    assert all(value.is_meta for value in (*target.parameters(), *target.buffers()))
    assert "vq" in models.assumptions[0]


def test_an_unknown_size_needs_its_files() -> None:
    entry = replace(published_entry("simplear-0.5b"), family=SimpleAR(checkpoint="mine", vq="x"))
    with pytest.raises(WeightsError, match=r"SimpleAR-0\.5B"):
        shape_only_models(entry, torch.bfloat16)


def copied(made: Checkpoint, tmp_path: Path) -> Checkpoint:
    return replace(made, folder=Path(shutil.copytree(made.folder, tmp_path / "copy")))


def refused(made: Checkpoint, words: str) -> None:
    """The entry is refused with these words, with values and in a dry run."""
    with pytest.raises(WeightsError, match=words):
        made.entry().load(CPU, torch.float32)
    with shapes_only(), pytest.raises(WeightsError, match=words):
        made.entry().load(torch.device("meta"), torch.float32)


def test_another_vocabulary_is_refused(made: Checkpoint, tmp_path: Path) -> None:
    copy = copied(made, tmp_path)
    tokenizer: Any = AutoTokenizer.from_pretrained(copy.folder)
    tokenizer.add_tokens(["one more"])
    tokenizer.save_pretrained(copy.folder)
    size = made.words + made.case.codes
    refused(copy, rf"config\.json: vocab_size is {size}, but {made.words + 1} tokens")


def test_another_models_tokenizer_is_refused(made: Checkpoint, tmp_path: Path) -> None:
    copy = copied(made, tmp_path)
    others = {"simplear": SIMPLEAR_TOKENS, "liquid": LIQUID_TOKENS}[made.case.family.kind]
    for file in ("tokenizer.json", "tokenizer_config.json"):
        text = (copy.folder / file).read_text()
        for token in others:
            text = text.replace(json.dumps(token), json.dumps(token.swapcase()))
        (copy.folder / file).write_text(text)
    refused(copy, f"{copy.folder}: its tokenizer has no token <")


def test_another_model_is_refused(made: Checkpoint, tmp_path: Path) -> None:
    copy = copied(made, tmp_path)
    other = {"simplear": liquid, "liquid": simplear}[made.case.family.kind]
    other(copy.folder)
    refused(copy, r"config\.json: a '\w+', not a '\w+': it is of another family")


def test_a_missing_codec_is_named_with_its_key(made: Checkpoint, tmp_path: Path) -> None:
    copy = copied(made, tmp_path)
    if made.case.family is SimpleAR:
        (copy.folder / "decoder.jit").unlink()
        refused(copy, f"{copy.folder}: has no decoder.jit; give `vq`")
        assert copy.entry(vq=str(made.folder)).load(CPU, torch.float32).codec is not None
    else:
        with pytest.raises(ConfigError, match="missing; give the file of Chameleon's VQGAN"):
            Liquid.from_mapping({"checkpoint": str(copy.folder)})
        shutil.copy(copy.folder / "model.safetensors", copy.folder / "vqgan.ckpt")
        refused(copy, r"vqgan\.ckpt")


def test_the_older_files_of_a_tokenizer_give_the_same_ids(tmp_path: Path) -> None:
    """SimpleAR's code saves them: vocab.json, merges.txt and added tokens."""
    simplear(tmp_path, codec=False)
    whole: Any = AutoTokenizer.from_pretrained(tmp_path)
    texts = [CASES["simplear"].prompt("a red ball"), CASES["simplear"].null]
    expected = [whole.encode(text) for text in texts]
    saved = json.loads((tmp_path / "tokenizer.json").read_text())
    added = {token["content"]: token["id"] for token in saved["added_tokens"]}
    (tmp_path / "vocab.json").write_text(json.dumps(saved["model"]["vocab"]))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    (tmp_path / "added_tokens.json").write_text(json.dumps(added))
    decoder = {
        str(number): {"content": token, "special": True, "lstrip": False, "rstrip": False,
                      "normalized": False, "single_word": False}
        for token, number in added.items()
    }  # fmt: skip
    config = {
        "tokenizer_class": "Qwen2Tokenizer",
        "added_tokens_decoder": decoder,
        "additional_special_tokens": SIMPLEAR_TOKENS,
        "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "bos_token": None,
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "tokenizer.json").unlink()
    older: Any = AutoTokenizer.from_pretrained(tmp_path)
    assert [older.encode(text) for text in texts] == expected
    assert len(older) == len(whole)
