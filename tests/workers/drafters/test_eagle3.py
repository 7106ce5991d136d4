"""EAGLE-3 drafters: files in the published layouts, the layer against its formula, taps against one
causal pass.

Every logit of three rounds' trees is compared with the layer as the paper has it, spelled out below
on the tensors of a file. A bad draft is never wrong, only slow, so no lossless test sees one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import workers.drafters.eagle as eagle
from search_spaces.drafters import Eagle3
from search_spaces.presets import PRESETS
from search_spaces.trees import Chain, Dynamic, Static, TreePolicy
from search_spaces.trial import DecodingConfig, Sampling
from tests.fakes.tiny_eagle import (
    CODES,
    HEADS,
    C,
    D,
    State,
    published,
    published_eagle3,
    rand,
    write,
)
from tests.fakes.toys import BASE, ROW_ENDS, toy_drafter, toy_eagle3, toy_target
from tests.oracles import plain_layers
from tests.oracles.drafter_rounds import CAPTIONS, DrafterInputs, assert_rounds
from tests.workers.drafters.test_files import EPS, rms, turned
from workers.decoding.build import load_drafter
from workers.decoding.engine import Engine
from workers.decoding.rng import image_keys
from workers.decoding.row_ends import teacher_forced
from workers.decoding.state import Batch, Request
from workers.drafters.eagle3 import Eagle3Drafter, default_taps
from workers.loading.models_yaml import load_folder
from workers.models.checkpoint_files import WeightsError, collect_notes, shapes_only
from workers.models.families.scenes import BUILTIN
from workers.models.own_files import save
from workers.models.target import Prompt, Target
from workers.models.transformer import TransformerConfig
from workers.training.drafters import header

LLAMAGEN = replace(BASE, n_layers=7, prompt_rope="zero")
CHAMELEON = replace(BASE, n_layers=7, rope="line")
DRAFTED = [0, 3, 4, 9, 17, 22]


def load_eagle3(path: Path, target: Target) -> Eagle3Drafter:
    drafter = load_drafter(target, "eagle3", path)
    assert isinstance(drafter, Eagle3Drafter)
    return drafter


# the layer, spelled out


def last_output(
    state: State,
    block: str,
    slots: list[tuple[int, Tensor, Tensor]],
    *,
    halves: bool,
    normed: bool,
) -> Tensor:
    """The un-normed output in the last of the slots (place, embedding, state), which sees all
    before it.
    """

    def w(name: str) -> Tensor:
        return state[f"{block}.{name}.weight"].double()

    places, states = (
        [place for place, _, _ in slots],
        torch.stack([g.double() for _, _, g in slots]),
    )
    embeddings = torch.stack([e.double() for _, e, _ in slots])
    normal = rms(states, w("hidden_norm"))
    z = torch.cat([rms(embeddings, w("input_layernorm")), normal], dim=1)
    q, k, v = ((z @ w(f"self_attn.{part}_proj").T).view(len(slots), HEADS, C) for part in "qkv")
    q, k = turned(q, places, halves=halves), turned(k, places, halves=halves)
    scores = torch.einsum("hc,shc->hs", q[-1], k) / math.sqrt(C)
    mixed = torch.einsum("hs,shc->hc", scores.softmax(1), v).flatten()
    u = (normal if normed else states)[-1:] + mixed @ w("self_attn.o_proj").T
    h = rms(u, w("post_attention_layernorm"))
    gate, up = h @ w("mlp.gate_proj").T, h @ w("mlp.up_proj").T
    return (u + (gate / (1 + (-gate).exp()) * up) @ w("mlp.down_proj").T)[0]


def expected_logits(
    state: State, drafted: list[int] | None, block: str, inputs: DrafterInputs, row: int, path: tuple[int, ...],
    *, halves: bool, normed: bool,
) -> Tensor:  # fmt: skip
    """Logits after the tokens so far and a path of drafts, by the published drafter."""
    table = state.get("embed_tokens.weight", inputs.target.embed.weight)
    last, mix = inputs.target.prompt_len - 1, state["fc.weight"].double()
    slots: list[tuple[int, Tensor, Tensor]] = [
        (
            t - last,
            inputs.prompt.embeds[row, t + 1] if halves else table[0],
            mix @ inputs.features[row, t].double(),
        )
        for t in inputs.prompt_slots(row)[:-1]
    ]
    tokens = inputs.tokens[inputs.caption(row)]
    for n, (token, taps) in enumerate(zip(tokens, inputs.before[row], strict=True)):
        slots.append((n, table[token], mix @ taps.double()))
    for n, token in enumerate(path, start=len(tokens)):
        slots.append(
            (n, table[token], last_output(state, block, slots, halves=halves, normed=normed))
        )
    out = last_output(state, block, slots, halves=halves, normed=normed)[None]
    logits = rms(out, state["norm.weight"].double())[0] @ state["lm_head.weight"].double().T
    if drafted is None:
        return logits
    return torch.full((CODES,), -torch.inf, dtype=torch.float64).index_copy(
        0, torch.tensor(drafted), logits
    )


@pytest.mark.parametrize("drafted", [None, DRAFTED])
@pytest.mark.parametrize(
    ("block", "sizes", "keys"),
    [
        ("midlayer", LLAMAGEN, {}),
        ("midlayer", CHAMELEON, {}),
        ("layers.0", CHAMELEON, {"speculators_model_type": "eagle3"}),
        (
            "layers.0",
            CHAMELEON,
            {"speculators_model_type": "eagle3", "norm_before_residual": True},
        ),
    ],
)
def test_a_published_drafter_drafts_as_its_own_layer_would(
    tmp_path: Path,
    block: str,
    sizes: TransformerConfig,
    keys: dict[str, Any],
    drafted: list[int] | None,
) -> None:
    target, state = toy_target(config=sizes), published_eagle3(block, drafted=drafted)
    layer = {"hidden_size": D, "num_attention_heads": HEADS, "rms_norm_eps": EPS}
    config = {**keys, "transformer_layer_config": layer} if keys else layer
    drafter = load_eagle3(write(tmp_path, state, **config), target)
    assert drafter.taps == (2, 3, 4)
    halves, normed = sizes.rope == "line", "norm_before_residual" in keys
    assert_rounds(
        target, drafter,
        lambda inputs, row, path: expected_logits(
            state, drafted, block, inputs, row, path, halves=halves, normed=normed
        ),
    )  # fmt: skip


def test_without_guidance_there_is_one_stream(tmp_path: Path) -> None:
    target, state = toy_target(config=LLAMAGEN), published_eagle3(drafted=DRAFTED)
    drafter = load_eagle3(write(tmp_path, state, rms_norm_eps=EPS), target)
    assert_rounds(
        target, drafter,
        lambda inputs, row, path: expected_logits(
            state, DRAFTED, "midlayer", inputs, row, path, halves=False, normed=False
        ),
        streams=1,
    )  # fmt: skip


def test_identity_passes_the_high_tap_on(tmp_path: Path) -> None:
    """With fc = [0 0 I] and a layer of zeros, the output is the state: the last of the three
    taps.
    """
    target, state = toy_target(config=LLAMAGEN), published_eagle3()
    state = {
        name: torch.zeros_like(value) if "_proj" in name else value for name, value in state.items()
    }
    state["fc.weight"] = torch.cat([torch.zeros(D, 2 * D), torch.eye(D)], dim=1)
    layer = load_eagle3(write(tmp_path, state), target).layer
    assert layer.drafts_all
    taps = torch.randn(2, 3, 3 * D)
    out = layer(torch.randn(2, 3, D), layer.fc(taps), torch.arange(3))
    torch.testing.assert_close(out, taps[..., 2 * D :])


# taps

TREES: dict[str, TreePolicy] = {
    "chain": Chain(3),
    "static": Static(paths=((0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0))),
    "dynamic": Dynamic(depth=3, width=3, nodes=8),
}


class Recorder(Eagle3Drafter):
    """Keeps what the engine gave it of each caption [R/B, S, taps * D]: the prompt's, then what
    precedes each token.
    """

    def admit(
        self,
        indices: Tensor,
        prompt: Prompt,
        captions: list[str],
        features: Tensor,
        first_tokens: Tensor,
    ) -> None:
        for row, caption in enumerate(captions):
            self.seen[caption] = [features[row :: len(captions)]]
        super().admit(indices, prompt, captions, features, first_tokens)

    def commit(self, batch: Batch, tokens: Tensor, features: Tensor, counts: Tensor) -> None:
        for row, key in enumerate(batch.keys.tolist()):
            self.seen[self.captions[key]].append(features[row :: batch.size, : int(counts[row])])
        super().commit(batch, tokens, features, counts)

    seen: dict[str, list[Tensor]]
    captions: dict[int, str]


@pytest.mark.parametrize("cfg", [1.0, 2.0])
@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize(
    "sizes", [replace(BASE, n_layers=7), replace(ROW_ENDS, n_layers=7)], ids=["grid", "row ends"]
)
def test_drafters_get_the_inputs_of_the_targets_layers(
    sizes: TransformerConfig, tree: str, cfg: float
) -> None:
    """Through prefill, verification, the accepted path, and rows that are given to waiting
    captions.
    """
    target, captions = toy_target(config=sizes, temper=1.0), ["ab", "defgh", "i", "kkk", "lm"]
    drafter = Recorder(target, toy_eagle3(sizes)).eval().requires_grad_(False)
    assert drafter.taps == (2, 3, 4)
    keys = image_keys(0, range(len(captions)), [0] * len(captions), target.device)
    drafter.seen, drafter.captions = {}, dict(zip(keys.tolist(), captions, strict=True))
    config = DecodingConfig(Eagle3(), TREES[tree], sampling=Sampling(cfg=cfg))
    engine = Engine(target, config, drafter, batch_size=2)
    for result in engine.run(Request(i, caption) for i, caption in enumerate(captions)):
        seen = torch.cat(drafter.seen[result.request.caption], dim=1)
        prompt = target.encode([result.request.caption], guided=cfg != 1)
        tokens = result.tokens[None, :-1].repeat(len(prompt.embeds), 1)
        taps = teacher_forced(target, prompt, tokens, drafter.taps)[..., D:]
        valid = torch.nn.functional.pad(prompt.valid, (0, tokens.shape[1]), value=True)
        for stream in range(len(taps)):
            expected = taps[stream, valid[stream]]
            got = seen[stream, : taps.shape[1]][valid[stream]]
            torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


def test_taps_are_the_inputs_of_layers_and_only_on_request() -> None:
    target = toy_target(config=replace(BASE, n_layers=7))
    inputs: list[Tensor] = []
    for layer in target.transformer.layers:  # type: ignore[union-attr]
        norm: Any = layer.attention_norm
        norm.register_forward_pre_hook(lambda module, args: inputs.append(args[0]))
    x, positions = torch.randn(2, 5, D), torch.arange(5)
    plain = target.transformer(x, positions)
    inputs.clear()
    tapped = target.transformer(x, positions, taps=(5, 0, 2))
    assert torch.equal(tapped, torch.cat([plain, inputs[5], inputs[0], inputs[2]], dim=-1))
    assert [default_taps(n) for n in (32, 14, 6, 2, 1)] == [
        (2, 16, 29),
        (2, 7, 11),
        (2, 3, 3),
        (0, 1, 1),
        (0, 0, 0),
    ]


# files


@pytest.mark.parametrize("name", ["eagle3", "eagle3_static", "eagle3_chain"])
def test_a_published_drafter_decodes_without_loss(tmp_path: Path, name: str) -> None:
    target = toy_target(config=LLAMAGEN, sampling=Sampling(temperature=0.0, cfg=2.0))
    drafter = load_drafter(target, "eagle3", write(tmp_path, published_eagle3(drafted=DRAFTED)))
    requests = [Request(i, caption) for i, caption in enumerate(CAPTIONS)]
    plain = {r.request: r.tokens for r in Engine(target, DecodingConfig()).run(requests)}
    for result in Engine(target, PRESETS[name], drafter, batch_size=3).run(requests):
        assert torch.equal(result.tokens, plain[result.request])


def test_taps_are_read_from_the_config(tmp_path: Path) -> None:
    target, state = toy_target(config=LLAMAGEN), published_eagle3()
    key, wrong = (
        "eagle_aux_hidden_state_layer_ids",
        r"names the inputs .* the target has the layers 0 to 6",
    )

    def load(**config: Any) -> tuple[int, ...]:
        return load_eagle3(write(tmp_path, state, **config), target).taps

    assert load(**{key: [0, 2, 6]}) == (0, 2, 6)
    # SpecForge: the outputs of these layers
    assert load(eagle_config={key: [0, 2, 5]}) == (1, 3, 6)
    for layers in ([2, 3, 7], [-1, 2, 3], ["a", 2, 3]):
        with pytest.raises(WeightsError, match=f"{key} {wrong}"):
            load(**{key: layers})
    with pytest.raises(
        WeightsError, match=r"fc\.weight has 96 columns, 2 hidden states of the target have 64"
    ):
        load(**{key: [2, 3]})


def test_a_whole_vocabulary_gives_its_image_codes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eagle, "_CHAMELEON_VOCAB_SIZE", CODES + 9)
    drafted = [1, 4, 9, CODES + 3, CODES + 7]  # the codes are 4 to CODES + 3
    state, target = published_eagle3(drafted=drafted, codes=CODES + 9), toy_target(config=CHAMELEON)
    layer = load_eagle3(write(tmp_path / "a", state), target).layer
    assert layer.ids.tolist() == [0, 5, CODES - 1]
    assert torch.equal(layer.head.weight, state["lm_head.weight"][1:4])
    assert layer.embed is not None
    assert torch.equal(layer.embed.weight, state["embed_tokens.weight"][4 : CODES + 4])
    only_text = published_eagle3(drafted=[1, 2], codes=CODES + 9)
    with pytest.raises(WeightsError, match="d2t covers none of the target's image codes"):
        load_eagle3(write(tmp_path / "b", only_text), target)
    with pytest.raises(
        WeightsError,
        match=f"t2d has {CODES + 9} tokens, the target {CODES}; it was made for another",
    ):
        load_eagle3(write(tmp_path / "c", state), toy_target(config=LLAMAGEN))


def without(state: State, *names: str) -> State:
    return {name: value for name, value in state.items() if name not in names}


def test_d2t_alone_says_what_is_drafted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without t2d and embeddings, as some are published."""
    state, target = published_eagle3(drafted=DRAFTED), toy_target(config=LLAMAGEN)
    layer = load_eagle3(
        write(tmp_path / "a", without(state, "t2d", "embed_tokens.weight")), target
    ).layer
    assert layer.ids.tolist() == DRAFTED
    whole = load_eagle3(write(tmp_path / "b", state), target).layer
    assert torch.equal(layer.head.weight, whole.head.weight)
    assert torch.equal(layer.ids, whole.ids)
    monkeypatch.setattr(eagle, "_CHAMELEON_VOCAB_SIZE", CODES + 9)
    drafted = [1, 4, 9, CODES + 3, CODES + 7]
    state = without(
        published_eagle3(drafted=drafted, codes=CODES + 9), "t2d", "embed_tokens.weight"
    )
    sized = write(tmp_path / "c", state, vocab_size=CODES + 9)
    assert load_eagle3(sized, toy_target(config=CHAMELEON)).layer.ids.tolist() == [0, 5, CODES - 1]
    with pytest.raises(
        WeightsError,
        match=r"t2d and embed_tokens\.weight are missing.*add vocab_size to config\.json",
    ):
        load_eagle3(write(tmp_path / "d", state), toy_target(config=CHAMELEON))
    with pytest.raises(WeightsError, match="vocab_size has 20 tokens, the target 24"):
        load_eagle3(write(tmp_path / "e", state, vocab_size=20), toy_target(config=CHAMELEON))


def test_eight_bit_floats_of_a_whole_vocabulary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eagle, "_CHAMELEON_VOCAB_SIZE", CODES + 9)
    state = published_eagle3(drafted=[1, 4, 9], codes=CODES + 9)
    floating = {name: value for name, value in state.items() if value.is_floating_point()}
    short = state | {name: value.to(torch.float8_e4m3fn) for name, value in floating.items()}
    with collect_notes() as notes:
        layer = load_eagle3(write(tmp_path, short), toy_target(config=CHAMELEON)).layer
    assert len(notes) == 1
    assert torch.equal(layer.head.weight, short["lm_head.weight"].float()[1:])


Change = Callable[[State], State]
CHANGES: list[tuple[Change, dict[str, Any], str]] = [
    (
        lambda s: {**s, "midlayer.self_attn.q_proj.bias": rand(D)},
        {},
        r"unknown.*midlayer\.self_attn\.q_proj\.bias",
    ),
    (lambda s: {**s, "layers.1.mlp.up_proj.weight": rand(D, D)}, {}, r"unknown.*layers\.1\.mlp"),
    (
        lambda s: {k: v for k, v in s.items() if "hidden_norm" not in k},
        {},
        r"missing.*hidden_norm\.weight",
    ),
    (lambda s: {k: v for k, v in s.items() if k != "norm.weight"}, {}, r"missing.*norm\.weight"),
    (
        lambda s: {k: v for k, v in s.items() if k != "lm_head.weight"},
        {},
        r"lm_head\.weight is missing",
    ),
    (
        lambda s: {k: v for k, v in s.items() if k != "d2t"},
        {},
        "d2t must have an integer for each of the 6 rows",
    ),
    (
        lambda s: {**s, "d2t": s["d2t"].bfloat16()},
        {},
        "d2t must have an integer for each of the 6 rows",
    ),
    (
        lambda s: {**s, "d2t": s["d2t"] + 2},
        {},
        "d2t must give every draft token another one of 24 tokens",
    ),
    (
        lambda s: {**s, "d2t": torch.zeros(6, dtype=torch.int64)},
        {},
        "t2d and d2t name different tokens",
    ),
    (lambda s: {**s, "d2t": -torch.arange(6)}, {}, "d2t must give every draft token another one"),
    (
        lambda s: {k: v for k, v in s.items() if "fc." not in k},
        {},
        r"not an EAGLE-3 drafter: it needs fc\.weight",
    ),
    (
        lambda _: published(),
        {},
        r"not an EAGLE-3 drafter.*By its names the file is an EAGLE drafter",
    ),
    (lambda s: s, {"fc_norm": True}, r"fc_norm is of EAGLE-3\.1, which is not supported"),
    (lambda s: s, {"norm_before_fc": True}, "norm_before_fc is of"),
    (lambda s: s, {"norm_output": False}, "norm_output is of"),
    (lambda s: s, {"norm_output": True, "speculators_model_type": "eagle3"}, "norm_output is of"),
    (lambda s: s, {"speculators_model_type": "hass"}, "speculators_model_type is 'hass'"),
    (
        lambda s: s,
        {"rope_scaling": {"rope_type": "llama3"}},
        "rope_scaling is 'llama3', which is not supported",
    ),
    (lambda s: s, {"hidden_size": 48}, r"hidden_size 48, fc\.weight has 32 rows"),
]


@pytest.mark.parametrize(("change", "keys", "message"), CHANGES)
def test_a_file_that_does_not_fit_is_refused(
    tmp_path: Path, change: Change, keys: dict[str, Any], message: str
) -> None:
    folder = write(tmp_path, change(published_eagle3(drafted=DRAFTED)), **keys)
    with pytest.raises(WeightsError, match=message):
        load_eagle3(folder, toy_target(config=CHAMELEON))


def test_another_targets_drafter_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path, published_eagle3())
    with pytest.raises(ValueError, match="width is 32, the target's 64"):
        load_eagle3(folder, toy_target(config=replace(LLAMAGEN, dim=64)))
    layer, deep = toy_eagle3(LLAMAGEN), toy_target(config=LLAMAGEN)
    with pytest.raises(
        ValueError,
        match=r"reads the layers \[2, 3, 4\], the target has 2; it was made for another",
    ):
        Eagle3Drafter(toy_target(), layer)
    layer.vocab_size = 30
    with pytest.raises(ValueError, match="eagle3 drafter: its vocab_size is 30, the target's 24"):
        Eagle3Drafter(deep, layer)
    with pytest.raises(WeightsError, match=r"an EAGLE-3 drafter: name it under drafters\.eagle3"):
        load_drafter(deep, "eagle", folder)


def test_files_are_checked_by_their_headers_alone(tmp_path: Path) -> None:
    target, folder = toy_target(config=LLAMAGEN), write(tmp_path, published_eagle3(drafted=DRAFTED))
    with shapes_only():
        assert len(load_eagle3(folder, target.to("meta")).layer.ids) == len(DRAFTED)


def test_the_projects_own_file(tmp_path: Path) -> None:
    target, made = toy_target(config=LLAMAGEN), toy_eagle3(LLAMAGEN)
    file = tmp_path / "eagle3.safetensors"
    save(file, made, header(target, made), dtype=torch.float32)
    for path in (file, tmp_path):
        drafter = load_eagle3(path, target)
        assert (drafter.taps, drafter.filler) == (made.taps, 0)
        for name, value in made.state_dict().items():
            assert torch.equal(drafter.layer.state_dict()[name], value), name
    with pytest.raises(WeightsError, match="does not describe an EAGLE-3 layer"):
        load_eagle3(BUILTIN / "eagle.safetensors", load_folder().target)


def test_plans_assume_a_head_for_all_codes() -> None:
    target = toy_target(config=LLAMAGEN).to("meta")
    drafter, assumption = Eagle3Drafter.usual(target, 5)
    assert drafter.layer.drafts_all
    assert "one layer of the target's width" in assumption


def test_codes_that_are_not_drafted_have_no_mass() -> None:
    target = toy_target()
    drafter = toy_drafter("eagle3", target)
    assert isinstance(drafter, Eagle3Drafter)
    logits = drafter.layer.spread(torch.randn(2, 3, len(drafter.layer.ids)))
    masses = logits.softmax(-1).sum((0, 1))
    assert (masses > 0).nonzero()[:, 0].tolist() == drafter.layer.ids.tolist()
    assert plain_layers.linear(drafter.layer.head, torch.randn(D)).shape == (
        len(drafter.layer.ids),
    )
