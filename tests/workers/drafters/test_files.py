"""Published EAGLE drafters: small files in their layout are written here, and every logit of three
rounds' trees is compared with the layer as the papers have it, spelled out below on the file's own
tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import workers.drafters.eagle as eagle
from search_spaces.drafters import Eagle
from search_spaces.trees import Chain
from search_spaces.trial import DecodingConfig, Sampling
from tests.fakes.tiny_eagle import CODES, FFN, HEADS, C, D, State, published, rand, write
from tests.fakes.toys import BASE, toy_drafter, toy_target
from tests.oracles import plain_layers
from tests.oracles.drafter_rounds import DrafterInputs, assert_rounds
from workers.decoding.build import load_drafter
from workers.decoding.engine import Engine
from workers.decoding.state import Request
from workers.drafters.eagle import EagleDrafter
from workers.loading.models_yaml import load_folder
from workers.models.checkpoint_files import WeightsError
from workers.models.families.scenes import BUILTIN
from workers.models.own_files import save
from workers.models.target import Target

LLAMAGEN = replace(BASE, prompt_rope="zero")
CHAMELEON = replace(BASE, rope="line", qk_norm=True)
EPS = 0.05  # large, so that a layer which takes another one is seen


def load_eagle(path: Path, target: Target) -> EagleDrafter:
    drafter = load_drafter(target, "eagle", path)
    assert isinstance(drafter, EagleDrafter)
    return drafter


# the layer, spelled out


def rms(x: Tensor, weight: Tensor) -> Tensor:
    out: Tensor = x / (x.square().mean(1, keepdim=True) + EPS).sqrt() * weight
    return out


def head_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Heads [S, H, C]: a LayerNorm each, with eps 1e-5 whatever the other norms have."""
    centred = x - x.mean(2, keepdim=True)
    out: Tensor = centred / (x.var(2, correction=0, keepdim=True) + 1e-5).sqrt() * weight + bias
    return out


def turned(x: Tensor, places: list[int], *, halves: bool) -> Tensor:
    """Heads [S, H, C] at image places [S]: Chameleon turns channel i with i + C/2 along the line;
    LlamaGen neighbours by row and column, and prompt places are multiplied by zero.
    """
    place, pair = torch.tensor(places, dtype=torch.float64)[:, None], torch.arange(C // 2)
    if halves:
        first, second, angle = pair, pair + C // 2, place * 10000.0 ** (-2 * pair / C)
    else:
        along = torch.where(pair < C // 4, place // 4, place % 4)
        first, second, angle = (
            2 * pair,
            2 * pair + 1,
            along * 10000.0 ** (-2 * (pair % (C // 4)) / (C // 2)),
        )
    real = halves | (place >= 0)
    cos, sin = (angle.cos() * real)[:, None], (angle.sin() * real)[:, None]
    out = torch.zeros_like(x)
    out[..., first] = x[..., first] * cos - x[..., second] * sin
    out[..., second] = x[..., first] * sin + x[..., second] * cos
    return out


def last_output(state: State, slots: list[tuple[int, Tensor, Tensor]]) -> Tensor:
    """What the layer predicts in the last of the slots (place, embedding, feature), which sees all
    before it.
    """
    state = {name: value.double() for name, value in state.items()}
    halves = "layers.0.self_attn.q_norm.weight" in state

    def w(name: str) -> Tensor:
        return state[f"layers.0.{name}.weight"]

    places = [place for place, _, _ in slots]
    x = torch.stack([torch.cat([e, f]).double() for _, e, f in slots]) @ state[
        "fc.weight"
    ].T + state.get("fc.bias", 0)
    h = rms(x, w("input_layernorm")) if halves else x
    q, k, v = ((h @ w(f"self_attn.{part}_proj").T).view(len(slots), HEADS, C) for part in "qkv")
    if halves:
        q = head_norm(q, w("self_attn.q_norm"), state["layers.0.self_attn.q_norm.bias"])
        k = head_norm(k, w("self_attn.k_norm"), state["layers.0.self_attn.k_norm.bias"])
    q, k = turned(q, places, halves=halves), turned(k, places, halves=halves)
    scores = torch.einsum("hc,shc->hs", q[-1], k) / math.sqrt(C)
    mixed = torch.einsum("hs,shc->hc", scores.softmax(1), v).flatten()
    y = x[-1:] + mixed @ w("self_attn.o_proj").T
    h = rms(y, w("post_attention_layernorm"))
    gate, up = h @ w("mlp.gate_proj").T, h @ w("mlp.up_proj").T
    return (y + (gate / (1 + (-gate).exp()) * up) @ w("mlp.down_proj").T)[0]


def expected_logits(
    state: State, inputs: DrafterInputs, row: int, path: tuple[int, ...], *, llamagen: bool
) -> Tensor:
    """Logits after the tokens so far and a path of drafts, by the published drafter."""
    own, last = state["embed_tokens.weight"], inputs.target.prompt_len - 1
    # LlamaGen: code 0 stands in for the prompt's tokens, and its padding is seen
    seen = range(last) if llamagen else inputs.prompt_slots(row)[:-1]
    slots: list[tuple[int, Tensor, Tensor]] = [
        (
            t - last,
            own[0] if llamagen else inputs.prompt.embeds[row, t + 1],
            inputs.features[row, t],
        )
        for t in seen
    ]
    tokens = inputs.tokens[inputs.caption(row)]
    for n, (token, feature) in enumerate(zip(tokens, inputs.before[row], strict=True)):
        slots.append((n, own[token], feature))
    for n, token in enumerate(path, start=len(tokens)):
        slots.append((n, own[token], last_output(state, slots)))
    return plain_layers.linear(inputs.target.head, last_output(state, slots))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("llamagen", [True, False])
def test_a_published_drafter_drafts_as_its_own_layer_would(
    tmp_path: Path, llamagen: bool, bias: bool
) -> None:
    target = toy_target(config=LLAMAGEN if llamagen else CHAMELEON)
    state = published(chameleon=not llamagen, bias=bias)
    drafter = load_eagle(write(tmp_path, state, rms_norm_eps=EPS, pickled=bias), target)
    assert (drafter.filler, drafter.masked) == ((0, False) if llamagen else (None, True))
    assert_rounds(
        target,
        drafter,
        lambda inputs, row, path: expected_logits(state, inputs, row, path, llamagen=llamagen),
    )


def test_a_whole_vocabulary_gives_its_image_codes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eagle, "_CHAMELEON_VOCAB_SIZE", CODES + 9)
    state, target = published(chameleon=True, codes=CODES + 9), toy_target(config=CHAMELEON)
    drafter = load_eagle(write(tmp_path / "a", state), target)
    tokens = torch.tensor([0, CODES - 1])
    assert torch.equal(drafter.embed(tokens), state["embed_tokens.weight"][tokens + 4])
    with pytest.raises(ValueError, match=f"embeds {CODES + 9} tokens, the target {CODES}"):
        load_eagle(write(tmp_path / "b", published(codes=CODES + 9)), toy_target(config=LLAMAGEN))


def test_an_embedding_that_is_the_targets_is_not_kept_twice(tmp_path: Path) -> None:
    target, state = toy_target(config=LLAMAGEN), published()
    assert load_eagle(write(tmp_path / "own", state), target).layer.embed is not None
    same = {**state, "embed_tokens.weight": target.embed.weight.clone()}
    assert load_eagle(write(tmp_path / "same", same), target).layer.embed is None


@pytest.mark.parametrize("pickled", [True, False])
def test_a_file_alone_does_as_well_as_its_folder(tmp_path: Path, pickled: bool) -> None:
    target, state = toy_target(config=LLAMAGEN), published()
    folder = write(tmp_path, state, pickled=pickled)
    (file,) = (path for path in folder.iterdir() if path.suffix != ".json")
    for path in (folder, file):
        layer = load_eagle(path, target).layer
        assert torch.equal(layer.fc.weight, state["fc.weight"])


def test_a_published_drafter_decodes_without_loss(tmp_path: Path) -> None:
    target = toy_target(config=LLAMAGEN, sampling=Sampling(temperature=0.0, cfg=2.0))
    drafter = load_drafter(target, "eagle", write(tmp_path, published()))
    requests = [Request(i, caption) for i, caption in enumerate(("ab", "c", "defgh"))]
    plain = {r.request: r.tokens for r in Engine(target, DecodingConfig()).run(requests)}
    for result in Engine(target, DecodingConfig(Eagle(), Chain(3)), drafter, batch_size=3).run(
        requests
    ):
        assert torch.equal(result.tokens, plain[result.request])


# what is refused

Change = Callable[[State], State]
CHANGES: list[tuple[Change, str]] = [
    (
        lambda s: {**s, "layers.1.mlp.up_proj.weight": rand(FFN, D)},
        "unknown.*layers.1.mlp.up_proj.weight",
    ),
    (lambda s: {**s, "extra.fc.weight": rand(D, D)}, "unknown.*extra.fc.weight"),
    (
        lambda s: {k: v for k, v in s.items() if "k_proj" not in k},
        "missing.*layers.0.self_attn.k_proj.weight",
    ),
    (lambda s: {k: v for k, v in s.items() if "embed" not in k}, "missing.*embed.weight"),
    (lambda s: {k: v for k, v in s.items() if "post" not in k}, "missing.*ffn_norm.weight"),
    (
        lambda s: {k: v for k, v in s.items() if not k.startswith("fc")},
        "not an EAGLE drafter: fc.weight is missing",
    ),
    (
        lambda s: {**s, "layers.0.self_attn.q_proj.weight": rand(D + 3, D)},
        "has shape.*wqkv.weight needs",
    ),
    (lambda s: {**s, "fc.bias": s["fc.bias"] * torch.nan}, "fc.bias holds NaN"),
]


@pytest.mark.parametrize(("change", "message"), CHANGES)
def test_every_tensor_counts(tmp_path: Path, change: Change, message: str) -> None:
    with pytest.raises(WeightsError, match=message):
        load_eagle(write(tmp_path, change(published())), toy_target(config=LLAMAGEN))


def test_a_chameleon_drafter_needs_both_of_its_norms(tmp_path: Path) -> None:
    state = published(chameleon=True)
    del state["layers.0.self_attn.k_norm.bias"]
    with pytest.raises(WeightsError, match=r"missing.*k_norm\.bias"):
        load_eagle(write(tmp_path, state), toy_target(config=CHAMELEON))


def test_another_targets_drafter_is_refused(tmp_path: Path) -> None:
    wide = toy_target(config=replace(LLAMAGEN, dim=64))
    with pytest.raises(ValueError, match="width is 32, the target's 64"):
        load_eagle(write(tmp_path / "a", published()), wide)
    with pytest.raises(WeightsError, match=r"hidden_size 48, fc\.weight has 32 rows"):
        load_eagle(write(tmp_path / "b", published(), hidden_size=48), toy_target(config=LLAMAGEN))


def test_broken_folders_say_what_is_wrong(tmp_path: Path) -> None:
    target = toy_target(config=LLAMAGEN)
    folder = write(tmp_path / "a", published(), pickled=True)
    (folder / "config.json").write_text("{")
    with pytest.raises(WeightsError, match=r"config\.json: not JSON"):
        load_eagle(folder, target)
    torch.save(published(), folder / "other.bin")
    with pytest.raises(
        WeightsError, match=r"one weight file .* found other\.bin, pytorch_model\.bin"
    ):
        load_eagle(folder, target)
    (tmp_path / "empty").mkdir()
    with pytest.raises(WeightsError, match="found none"):
        load_eagle(tmp_path / "empty", target)
    with pytest.raises(WeightsError, match="no such file"):
        load_eagle(tmp_path / "nowhere.bin", target)


# the project's own


def test_the_projects_own_file_and_folder() -> None:
    target = load_folder().target
    for path in (BUILTIN / "eagle.safetensors", BUILTIN):
        drafter = load_eagle(path, target)
        assert (drafter.filler, drafter.masked, drafter.layer.embed) == (0, True, None)
    with pytest.raises(WeightsError, match="does not describe an EAGLE layer"):
        load_eagle(BUILTIN / "medusa.safetensors", target)
    with pytest.raises(
        ValueError, match=r"jacobi drafter has no weights.*eagle, eagle3, medusa, independent"
    ):
        load_drafter(target, "jacobi", BUILTIN / "eagle.safetensors")


def test_the_header_says_what_prompts_are_made_of(tmp_path: Path) -> None:
    target: Target = toy_target(config=CHAMELEON)
    made = toy_drafter("eagle", target)
    assert isinstance(made, EagleDrafter)
    header = {"transformer": asdict(made.layer.decoder.config), "filler": None}
    save(tmp_path / "eagle.safetensors", made.layer, header)
    assert load_eagle(tmp_path / "eagle.safetensors", target).filler is None
