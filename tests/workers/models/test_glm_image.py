"""GLM-Image through transformers' own forward: its `generate` draws the same tokens, preview and
image, at the positions that its `get_rope_index` gives.

Only the pixel decoder is a stand-in: a fake module shows what `diffusers`, which need not be
installed, is called with (see test_glm_image_pixels.py).
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from copy import deepcopy
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoTokenizer, GlmImageProcessor
from transformers.models.glm_image.image_processing_pil_glm_image import GlmImageImageProcessorPil

from search_spaces.params import ConfigError
from search_spaces.presets import preset
from search_spaces.trial import DecodingConfig, Sampling
from tests.fakes.tiny_foreign import GLM_CODES, MODES, glm_image
from tests.fakes.watched import Replay, draw
from workers.data.grid import Grid
from workers.decoding.engine import Engine
from workers.decoding.row_ends import teacher_forced
from workers.loading.models import Capabilities, Models
from workers.loading.models_yaml import published_entry
from workers.models.checkpoint_files import WeightsError, shapes_only
from workers.models.families import glm_image as family
from workers.models.families.glm_image import NO_DECODER, GlmImage, grid_of, sequence_places
from workers.models.target import Target

CPU = torch.device("cpu")
CAPTIONS = ["a red ball", "a cat"]
GREEDY = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "cfg": 1.0}
WIDTH, HEIGHT = 96, 64
GRID = Grid(2, 3, (2, 3))
#: Ids that the head has and this project's does not.
NOT_CODES = list(range(GLM_CODES, GLM_CODES + 4))


@pytest.fixture(scope="module", autouse=True)
def small_previews() -> Iterator[None]:
    """Previews of 3 x 3 codes in the place of 16 x 16."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(family, "_PREVIEW_SIDE", 3)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("glm_image")


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    torch.manual_seed(0)
    return glm_image(folder)


@pytest.fixture(scope="module")
def target(folder: Path, reference: Any) -> Target:
    return load(folder)


def load(
    folder: Path, dtype: torch.dtype = torch.float32, device: torch.device = CPU, **keys: Any
) -> Target:
    usual = {"width": WIDTH, "height": HEIGHT, "prompt_tokens": 24}
    found = GlmImage(str(folder), **{"processor": str(folder / "processor"), **usual, **keys})
    found.check()
    return found.load(device, dtype)


def prompt_of(target: Target, caption: str) -> dict[str, Tensor]:
    """The inputs that the official processor would give the model."""
    (ids,) = target.conditioner.token_ids([caption])  # type: ignore[operator]
    return {
        "input_ids": torch.tensor([ids]),
        "attention_mask": torch.ones(1, len(ids), dtype=torch.int64),
        "image_grid_thw": torch.tensor([[1, *GRID.sizes[:2]], [1, *GRID.preview]]),
        "images_per_sample": torch.tensor([2]),
    }


def generated(reference: Any, target: Target) -> dict[str, Tensor]:
    """transformers' own greedy codes, of the preview first, of each caption by itself."""
    found = {}
    for caption in CAPTIONS:
        inputs = prompt_of(target, caption)
        out = reference.generate(
            **inputs, do_sample=False, max_new_tokens=GRID.tokens, suppress_tokens=NOT_CODES
        )
        found[caption] = out[0, inputs["input_ids"].shape[1] :]
    return found


@pytest.fixture(scope="module")
def greedy(reference: Any, target: Target) -> dict[str, Tensor]:
    return generated(reference, target)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_vanilla_draws_what_transformers_generates(
    folder: Path, reference: Any, dtype: torch.dtype
) -> None:
    """Two captions of different lengths together, against each by itself."""
    target = load(folder, dtype)
    assert target.name == "glm-image-96x64-32x2"
    assert target.sampling == Sampling(temperature=0.9, top_p=0.75, cfg=1.0)
    assert (target.grid, target.vocab_size) == (GRID, GLM_CODES)
    wanted = generated(deepcopy(reference).to(dtype), target)
    results, _ = draw(target, {"sampling": GREEDY}, None, CAPTIONS, batch=2)
    assert not torch.equal(wanted[CAPTIONS[0]], wanted[CAPTIONS[1]]), "captions must matter"
    for caption, result in results.items():
        assert torch.equal(result.tokens, wanted[caption])


@pytest.mark.parametrize(("dtype", "near"), [(torch.float32, 1e-4), (torch.float64, 1e-6)])
def test_logits_are_the_reference_models(
    folder: Path, reference: Any, dtype: torch.dtype, near: float
) -> None:
    """At every place, in one pass of transformers at its own positions. Its norms and rotations
    compute in float32 in either type.
    """
    caption = CAPTIONS[0]
    length = prompt_of(load(folder), caption)["input_ids"].shape[1]
    target = load(folder, dtype, prompt_tokens=length)  # without padding: the same positions
    generator = torch.Generator().manual_seed(1)
    image = torch.randint(GLM_CODES, (1, GRID.tokens), generator=generator)
    inputs = prompt_of(target, caption)
    whole = deepcopy(reference).to(dtype)
    prompt, _ = whole.model.get_rope_index(**inputs)
    decode = whole.model._cached_decode_position_ids.movedim(1, 0)
    ids = torch.cat([inputs["input_ids"], image], dim=1)
    out = whole(input_ids=ids, position_ids=torch.cat([prompt, decode[..., :-1]], dim=2))
    x = torch.cat([target.encode([caption], guided=False).embeds, target.embed(image)], dim=1)
    logits = target.head(target.transformer(x, torch.arange(x.shape[1])))
    assert torch.allclose(logits, out.logits[..., :GLM_CODES], atol=near, rtol=0)
    assert logits.std() > 0.5


@pytest.mark.parametrize("size", [(32, 32), (1024, 1024), (768, 1152), (1536, 32), (96, 64)])
def test_positions_are_those_of_get_rope_index(
    reference: Any, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The image end's too, which is the first after the image."""
    monkeypatch.setattr(family, "_PREVIEW_SIDE", 16)
    grid, length = grid_of(*size), 5
    config = reference.config
    ids = torch.full((1, length), config.image_token_id)
    ids[0, -1] = config.image_start_token_id
    model = deepcopy(reference.model)
    prompt, _ = model.get_rope_index(
        ids, torch.tensor([[1, *grid.sizes[:2]], [1, *grid.preview]]), torch.tensor([2]), ids > 0
    )
    found = sequence_places(length, grid)
    assert torch.equal(found[:length].T, prompt[:, 0])
    image = found[length : length + grid.tokens + 1]
    assert torch.equal(image.T, model._cached_decode_position_ids[0])
    assert len(found) > length + grid.tokens + 1


def test_prompts_and_grids_are_the_processors(
    folder: Path, reference: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with a tokenizer that puts a token of its own before every text."""
    monkeypatch.setattr(family, "_PREVIEW_SIDE", 16)
    for rows in range(1, 65, 3):
        for cols in range(1, 65, 2):
            shape: Any = GlmImageProcessor._get_target_shape
            assert grid_of(32 * cols, 32 * rows).sizes == shape(None, 32 * rows, 32 * cols)
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    file = copy / "processor" / "tokenizer.json"
    plain = json.loads(file.read_text())
    first = {"id": "<|endoftext|>", "ids": [42], "tokens": ["<|endoftext|>"]}
    plain["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"<|endoftext|>": first},
    }
    file.write_text(json.dumps(plain))
    for place in (folder, copy):
        tokenizer: Any = AutoTokenizer.from_pretrained(place / "processor")
        kind: Any = GlmImageProcessor
        processor = kind(GlmImageImageProcessorPil(), tokenizer, tokenizer.chat_template)
        conditioner: Any = load(place, width=768, height=1152, prompt_tokens=32).conditioner
        for caption in CAPTIONS:
            messages = [{"role": "user", "content": [{"type": "text", "text": caption}]}]
            inputs = processor.apply_chat_template(
                messages, tokenize=True, return_dict=True, processor_kwargs={"target_h": 1152, "target_w": 768},
            )  # fmt: skip
            assert conditioner.token_ids([caption]) == inputs["input_ids"]
            assert inputs["image_grid_thw"].tolist() == [[1, 36, 24], [1, 19, 13]]
    assert conditioner.token_ids(["a"])[0][0] == 42


@pytest.mark.parametrize("mode", MODES)
def test_every_way_of_drafting_draws_the_same(
    target: Target, greedy: dict[str, Tensor], mode: str
) -> None:
    drafter = Replay(greedy, GLM_CODES, errors=3) if MODES[mode]["drafter"] == "medusa" else None
    results, _ = draw(target, {**MODES[mode], "sampling": GREEDY}, drafter, CAPTIONS, batch=2)
    for caption, result in results.items():
        assert torch.equal(result.tokens, greedy[caption])
    if drafter is not None:
        assert max(result.statistics.mean_accepted_length for result in results.values()) > 1.5


def test_teacher_forced_features_and_taps_are_the_reference_models(
    target: Target, reference: Any, greedy: dict[str, Tensor]
) -> None:
    """What drafters are trained on: the outputs, and behind them the inputs of layers."""
    prompt = target.encode(CAPTIONS[:1], guided=False)
    features = teacher_forced(target, prompt, greedy[CAPTIONS[0]][None], taps=(0, 1))
    inputs = prompt_of(target, CAPTIONS[0])
    start, _ = deepcopy(reference.model).get_rope_index(**inputs)
    grid = sequence_places(start.shape[2], GRID)[start.shape[2] :][: GRID.tokens]
    ids = torch.cat([inputs["input_ids"], greedy[CAPTIONS[0]][None]], dim=1)
    out = reference.model.language_model(
        inputs_embeds=reference.get_input_embeddings()(ids),
        position_ids=torch.cat([start, grid.T[:, None]], dim=2),
        output_hidden_states=True,
    )
    wanted = torch.cat([out.last_hidden_state, *out.hidden_states[:2]], dim=-1)
    length = ids.shape[1]
    assert torch.allclose(features[:, -length:], wanted, atol=1e-4)


def test_rows_of_one_grid_are_refused_before_anything_runs(target: Target) -> None:
    capabilities = Capabilities.of(Models(target, {}))
    assert capabilities.preview == GRID.preview
    assert Capabilities.from_mapping(capabilities.to_mapping()) == capabilities
    for name in ("zipar", "pjd"):
        config = preset(name)
        for check in (capabilities.check, lambda config: Engine(target, config)):
            with pytest.raises(ConfigError) as refused:
                check(config)
            assert refused.value.path == ("drafter",)


def test_without_a_decoder_there_are_codes_only(target: Target, reference: Any) -> None:
    """The VQ tokenizer's codes, as it compares them, are there for neighbourhoods."""
    assert target.no_images == NO_DECODER
    with pytest.raises(ValueError, match="decoder"):
        target.decode(torch.zeros(1, GRID.tokens, dtype=torch.int64))
    codes = reference.model.vqmodel.quantize.embedding.weight
    assert torch.allclose(target.codebook, torch.nn.functional.normalize(codes, dim=1))
    assert Capabilities.of(Models(target, {})).image_size == WIDTH
    acceptance = {"neighbourhood": "additive", "k": 5, "delta": 0.3}
    setting = {"drafter": "jacobi", "tree": {"policy": "chain", "length": 4}}
    config = DecodingConfig.from_mapping({**setting, "acceptance": acceptance})
    assert Engine(target, config).acceptor.tables.neighbours is not None


class FakePipeline:
    """What this project calls of diffusers' GlmImagePipeline: an image whose red is the code of a
    place over the number of codes.
    """

    loaded: list[dict[str, Any]]
    calls: list[dict[str, Any]]

    @classmethod
    def from_pretrained(cls, path: str, **options: Any) -> FakePipeline:
        cls.loaded.append({"path": path, **options})
        return cls()

    def set_progress_bar_config(self, *, disable: bool) -> None:
        assert disable

    def to(self, device: torch.device) -> FakePipeline:
        return self

    def __call__(self, **given: Any) -> SimpleNamespace:
        self.calls.append(given)
        height, width = given["height"], given["width"]
        codes = given["prior_token_ids"].view(1, height // 16, width // 16)
        red = (codes / GLM_CODES).repeat_interleave(16, 1).repeat_interleave(16, 2)
        return SimpleNamespace(images=torch.stack([red, 0 * red, 0 * red], dim=1))


@pytest.fixture
def fake_diffusers(monkeypatch: pytest.MonkeyPatch) -> type[FakePipeline]:
    module = ModuleType("diffusers")
    module.__spec__ = ModuleSpec("diffusers", None)
    FakePipeline.loaded, FakePipeline.calls = [], []
    module.GlmImagePipeline = FakePipeline  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "diffusers", module)
    return FakePipeline


def pipeline_folder(folder: Path) -> Path:
    for part in ("transformer", "vae", "text_encoder", "tokenizer", "scheduler"):
        (folder / part).mkdir(parents=True)
    save_file({"one": torch.zeros(250)}, folder / "transformer" / "model.safetensors")
    (folder / "model_index.json").write_text(json.dumps({"_class_name": "GlmImagePipeline"}))
    return folder


def test_the_official_pipeline_gets_the_codes_of_the_image(
    folder: Path, reference: Any, tmp_path: Path, fake_diffusers: type[FakePipeline]
) -> None:
    """Each twice in both directions, one image at a time from the same noise; no code of the
    preview.
    """
    whole = pipeline_folder(tmp_path / "whole")
    target = load(folder, decoder=str(whole))
    assert target.no_images == ""
    codec: Any = target.codec
    assert codec.decoder_bytes > 1000
    assert not fake_diffusers.loaded, "it is loaded when it is first needed"
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(GLM_CODES, (2, GRID.tokens), generator=generator)
    images = target.decode(tokens)
    grids = tokens[:, GRID.preview_tokens :].view(2, GRID.rows, GRID.cols)
    wanted = (grids / GLM_CODES).repeat_interleave(32, 1).repeat_interleave(32, 2)
    assert images.shape == (2, 3, HEIGHT, WIDTH)
    assert torch.allclose(images[:, 0], wanted, atol=1e-6)
    assert not images[:, 1:].any()
    (loaded,) = fake_diffusers.loaded
    assert (loaded["path"], loaded["torch_dtype"]) == (str(whole), torch.float32)
    assert (loaded["vision_language_encoder"], loaded["processor"]) == (None, None)
    assert loaded["local_files_only"]
    seeds = {call["generator"][0].initial_seed() for call in fake_diffusers.calls}
    assert (len(fake_diffusers.calls), len(seeds)) == (2, 1)
    with shapes_only():
        outline = load(folder, device=torch.device("meta"), decoder=str(whole))
    blank = outline.decode(tokens.to("meta"))
    assert (blank.shape, len(fake_diffusers.loaded)) == (images.shape, 1)


def test_a_decoder_that_cannot_decode_is_refused_by_name(
    folder: Path, reference: Any, tmp_path: Path, fake_diffusers: type[FakePipeline],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    whole = pipeline_folder(tmp_path / "whole")
    monkeypatch.setattr(family, "find_spec", lambda name: None)
    with pytest.raises(WeightsError, match=r"whole: `decoder` needs the library diffusers"):
        load(folder, decoder=str(whole))
    (whole / "vae").rmdir()
    with pytest.raises(WeightsError, match="lacks vae"):
        load(folder, decoder=str(whole))
    (whole / "model_index.json").write_text('{"_class_name": "FluxPipeline"}')
    with pytest.raises(WeightsError, match=r"model_index.json: a 'FluxPipeline'"):
        load(folder, decoder=str(whole))
    with pytest.raises(WeightsError, match=r"model_index.json: no such file"):
        load(folder, decoder=str(folder))


def test_files_of_another_model_are_refused_by_name(
    folder: Path, reference: Any, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    config = json.loads((copy / "config.json").read_text())

    def refused(match: str, **keys: Any) -> None:
        with pytest.raises(WeightsError, match=match):
            load(copy, **keys)

    refused("prompt_tokens 12: the prompt of an empty caption", prompt_tokens=12)
    refused("copy: has no tokenizer; give `processor`", processor=None)
    text = config["text_config"]
    vocabulary = text["vocab_size"]
    for key, value in {"image_start_token_id": GLM_CODES + 1, "model_type": "glm4v"}.items():
        (copy / "config.json").write_text(json.dumps(config | {key: value}))
        refused({"model_type": "another family"}.get(key, f"begins images with {value}"))
    (copy / "config.json").write_text(json.dumps(config | {"image_start_token_id": 3}))
    refused(r"config.json: 40 codes, image_start_token_id 3")
    (copy / "config.json").write_text(json.dumps(config))
    file = copy / "model.safetensors"
    tensors = load_file(file)
    # embeddings of fewer words than the tokenizer has
    name = "model.language_model.embed_tokens.weight"
    fewer = json.loads(json.dumps(config))
    fewer["text_config"]["vocab_size"] = vocabulary - 3
    (copy / "config.json").write_text(json.dumps(fewer))
    save_file(tensors | {name: tensors[name][:-3].clone()}, file, {"format": "pt"})
    refused(f"processor: its tokenizer has {vocabulary} tokens, the model embeds {vocabulary - 3}")
    (copy / "config.json").write_text(json.dumps(config))
    codes = "model.vqmodel.quantize.embedding.weight"
    save_file(
        {key: value for key, value in tensors.items() if key != codes}, file, {"format": "pt"}
    )
    refused(f"lacks {codes}")
    (copy / "processor" / "chat_template.jinja").unlink()
    save_file(tensors, file, {"format": "pt"})
    refused("processor: its tokenizer has no chat template")
    with pytest.raises(ConfigError, match="multiple of 32"):
        load(folder, width=100)


def test_the_published_sizes_need_no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """9 billion numbers beside the vision tower, which drawing does not need."""
    monkeypatch.setattr(family, "_PREVIEW_SIDE", 16)
    target = published_entry("glm-image").family.build_on_meta(torch.bfloat16)
    assert target.name == "glm-image-1024x1024-4096x40"
    assert target.grid == Grid(32, 32, (16, 16))
    assert (target.grid.tokens, target.vocab_size) == (1280, 16384)
    numbers = sum(parameter.numel() for parameter in target.parameters())
    # layers, words, the codes' embeddings and rows of the head
    layer = 4096 * (2 * 4096 + 2 * 256 + 3 * 13696) + (4096 + 2 * 256) + 4 * 4096
    assert numbers == 40 * layer + 4096 + 4096 * (168_064 + 2 * 16_384)
    assert target.codebook.shape == (16384, 2048)
    assert all(parameter.is_meta for parameter in target.parameters())
