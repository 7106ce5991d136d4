"""Lumina-mGPT: where its forced tokens stand, in every drafting mode and aspect, against
transformers' own forward over the official sequence.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import ChameleonForConditionalGeneration

from search_spaces.trial import Sampling
from tests.fakes.tiny_chameleon import (
    SIZE,
    VQ,
    WORD_IDS,
    checkpoint,
    guided_logits,
    reference_model,
)
from tests.fakes.watched import Replay, draw
from workers.decoding.drafter import Drafter
from workers.decoding.row_ends import teacher_forced
from workers.decoding.statistics import Result
from workers.drafters.eagle import EagleDrafter, EagleLayer
from workers.drafters.independent import IndependentDrafter
from workers.models.families.lumina import ROW_END, Lumina
from workers.models.target import Target
from workers.models.transformer import Transformer, TransformerConfig

# width, height: 6 x 4 codes, 4 x 6, 10 x 2, 2 x 10
SIZES = [(64, 96), (96, 64), (32, 160), (160, 32)]
GREEDY = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "cfg": 3.0}
SAMPLED = {"temperature": 1.0, "top_k": 2000, "top_p": 1.0, "cfg": 3.0}
MODES: dict[str, dict[str, object]] = {
    "vanilla": {},
    "chain": {"drafter": "medusa", "tree": {"policy": "chain", "length": 5}},
    "static": {"drafter": "medusa", "tree": {"policy": "static", "name": "eagle1_26"}},
    "dynamic": {
        "drafter": "medusa",
        "tree": {"policy": "dynamic", "depth": 5, "width": 3, "nodes": 12},
    },
    "adjacency": {
        "drafter": "medusa",
        "tree": {
            "policy": "adjacency",
            "initialisation": "vertical",
            "width_range": [2, 4],
            "start_width": 3,
            "nodes": 12,
        },
    },
    "block": {
        "drafter": "medusa",
        "tree": {"policy": "chain", "length": 5},
        "acceptance": {"verification": "block"},
    },
    "jacobi": {"drafter": "jacobi", "tree": {"policy": "chain", "length": 7}},
    "long window": {
        "drafter": {"kind": "jacobi", "redraw": "maximal"},
        "tree": {"policy": "chain", "length": 15},
    },
    "drafted window": {"drafter": "medusa", "tree": {"policy": "window", "length": 5}},
    "window that branches": {
        "drafter": {"kind": "jacobi", "redraw": "maximal"},
        "tree": {"policy": "branching", "length": 6, "width": 3, "depth": 2},
    },
}
CAPTIONS = ("a red ball", "a blue cat", "an image of a red cat")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint(tmp_path_factory.mktemp("lumina"))


@pytest.fixture(scope="module")
def reference() -> ChameleonForConditionalGeneration:
    return reference_model()


@cache
def load(folder: Path, size: tuple[int, int]) -> Target:
    """The target for images of a size, the same for all tests."""
    width, height = size
    entry = Lumina(transformer=str(folder), prompt_tokens=28, width=width, height=height)
    return entry.load(torch.device("cpu"), torch.float32)


def sequence(tokens: Tensor, rows: int, cols: int) -> Tensor:
    """The official ids [B, 3 + rows * (cols + 1) + 1] of images given as codes [B, rows * cols]."""
    lines = torch.nn.functional.pad(tokens.view(-1, rows, cols) + 4, (0, 1), value=ROW_END).flatten(
        1
    )
    start = tokens.new_tensor([8197, 8804 + rows // 2, 8804 + cols // 2])
    return torch.cat(
        [start.expand(len(lines), -1), lines, tokens.new_full((len(lines), 1), 8196)], dim=1
    )


def prompts(target: Target, caption: str) -> tuple[list[int], list[int]]:
    """Both streams' prompts without padding, the forced size tokens at their ends."""
    (real,) = target.conditioner.token_ids([caption])  # type: ignore[operator]
    start = [8197, 8804 + target.grid.rows // 2, 8804 + target.grid.cols // 2]
    assert real[-3:] == start
    return real, start


@cache
def vanilla_tokens(target: Target, captions: tuple[str, ...]) -> dict[str, Tensor]:
    results, _ = draw(target, {"sampling": GREEDY}, None, captions, batch=len(captions))
    return {caption: result.tokens for caption, result in results.items()}


def drafter_for(mode: str, known: dict[str, Tensor], errors: int = 0) -> Drafter | None:
    return Replay(known, 8192, errors) if MODES[mode].get("drafter") == "medusa" else None


# the prompt and the sequence


def test_prompt_and_official_sequence(folder: Path) -> None:
    target = load(folder, (768, 768))
    assert target.name == f"lumina-mgpt-768-{SIZE}"
    assert (target.grid.rows, target.grid.cols, target.vocab_size) == (48, 48, 8192)
    assert target.sampling == Sampling(temperature=1.0, top_k=2000, cfg=3.0)
    (ids,) = target.conditioner.token_ids(["a red ball"])  # type: ignore[operator]
    lead = "Generate an image of 768x768 according to the following prompt : a red ball"
    text = [WORD_IDS.get(word, 3) for word in lead.replace("768x768", "768 x 768").split()]
    assert target.prompt_len == 28
    assert ids == [0, *text, 8710, 8197, 8828, 8828]
    guided = target.encode(["a red ball"], guided=True)
    # the unconditional stream begins with the image
    assert guided.valid[1].tolist() == [False] * 25 + [True] * 3
    words = target.state_dict()["conditioner.words.weight"]
    assert torch.equal(guided.embeds[1, -3:], words[torch.tensor([8197, 8828, 8828])])
    codes = torch.randint(8192, (2, 2304))
    official = sequence(codes, 48, 48)
    assert official.shape == (2, 3 + 2352 + 1)
    generated = official[:, 3:]
    for n in range(1, 2354):  # the published mask, by the number of tokens after the size tokens
        forced = 8196 if n == 2353 else 8803 if n % 49 == 0 else None
        column = generated[:, n - 1]
        assert (column == forced).all() if forced else ((column >= 4) & (column <= 8195)).all()
    assert torch.equal(generated[:, :2352].view(2, 48, 49)[:, :, :48].flatten(1) - 4, codes)
    assert Lumina("x", width=1024, height=32).image.suffix[-2:] == (8805, 8836)


def test_wide_images_name_width_first_and_height_token_first(folder: Path) -> None:
    target = load(folder, (96, 64))
    assert Lumina("x", width=96, height=64).image.prefix.startswith(
        "Generate an image of 96x64 according"
    )
    assert prompts(target, "a cat")[0][-2:] == [8806, 8807]
    assert (target.grid.rows, target.grid.cols) == (4, 6)


def test_rotations_leave_room_for_row_ends() -> None:
    config = TransformerConfig(
        dim=8,
        n_layers=1,
        n_heads=1,
        ffn_dim=8,
        vocab_size=4,
        rope="line",
        prompt_len=3,
        rows=2,
        cols=4,
        row_ends=True,
    )
    # the fastest pair turns by one radian a position
    angles = Transformer(config).rotations[:, 0].angle()
    # prompt, four codes, four after the first row's end, one beyond
    places = [0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 13]
    assert torch.allclose(angles[:12].cos(), torch.tensor(places).cos(), atol=1e-5)
    assert torch.allclose(angles[-2:].cos(), torch.tensor([7.0, 12.0]).cos(), atol=1e-5)
    assert len(angles) == config.positions + 2
    with pytest.raises(ValueError, match="row_ends need rope 'line'"):
        TransformerConfig(dim=8, n_layers=1, n_heads=1, ffn_dim=8, row_ends=True)


@pytest.mark.parametrize("shards", [1, 2])
def test_heads_of_a_shard_share_their_norms(tmp_path: Path, shards: int) -> None:
    """Lumina-mGPT's own files have a row of each norm for every shard (7B: one), transformers one
    for every head.
    """
    target = load(checkpoint(tmp_path, shards), (64, 64))
    assert (target.transformer.config.n_heads, target.transformer.config.kv_heads) == (4, 2)
    _, engine = draw(target, {"sampling": GREEDY}, None, CAPTIONS[:1])
    paths, logits = zip(*engine.paths(), strict=True)
    expected = guided_logits(
        reference_model(shards=shards), prompts(target, CAPTIONS[0]), paths, cols=4
    )
    torch.testing.assert_close(torch.stack(logits), expected, atol=2e-4, rtol=1e-4)


# every drafting mode


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("mode", MODES)
def test_row_ends_in_every_mode(
    folder: Path, reference: ChameleonForConditionalGeneration, mode: str, size: tuple[int, int]
) -> None:
    """Greedy: the tokens are vanilla's, and what every slot of every round was scored with, along
    its own path, is what transformers gives over the official sequence of that path: row ends in
    their places, at their positions, seen.
    """
    target, caption = load(folder, size), CAPTIONS[0]
    known = vanilla_tokens(target, (caption,))
    setting = {**MODES[mode], "sampling": GREEDY}
    results, engine = draw(target, setting, drafter_for(mode, known, errors=5), [caption])
    assert torch.equal(results[caption].tokens, known[caption])
    paths, logits = zip(*engine.paths(), strict=True)
    expected = guided_logits(reference, prompts(target, caption), paths, cols=target.grid.cols)
    assert expected.std() > 1
    torch.testing.assert_close(torch.stack(logits), expected, atol=2e-4, rtol=1e-4)
    on_the_way = [path for path in paths if path == known[caption][: len(path)].tolist()]
    choices = guided_logits(
        reference, prompts(target, caption), on_the_way, cols=target.grid.cols
    ).argmax(1)
    assert choices.tolist() == [int(known[caption][len(path)]) for path in on_the_way]
    assert {len(path) for path in on_the_way} == set(range(1, target.grid.tokens))


@pytest.mark.parametrize("mode", MODES)
def test_sampled_images_do_not_depend_on_their_batch(folder: Path, mode: str) -> None:
    """Images of a batch meet their row ends in different rounds; also under relaxed acceptance."""
    target = load(folder, (32, 128))
    known = vanilla_tokens(target, CAPTIONS)
    rules: list[dict[str, object]] = [{}]
    if mode == "chain":
        rules.append({"acceptance": "uniform"})
    if mode == "static":
        rules.append(
            {
                "acceptance": {
                    "neighbourhood": "additive",
                    "k": 50,
                    "delta": 0.3,
                    "proximity": "random",
                }
            }
        )
    for acceptance in rules:
        setting = {**MODES[mode], **acceptance, "sampling": SAMPLED}
        alone, _ = draw(target, setting, drafter_for(mode, known), CAPTIONS)
        together, _ = draw(target, setting, drafter_for(mode, known), CAPTIONS, batch=2)
        for caption in CAPTIONS:
            assert torch.equal(alone[caption].tokens, together[caption].tokens)
            assert torch.equal(
                alone[caption].statistics.emitted, together[caption].statistics.emitted
            )
            assert int(alone[caption].tokens.max()) < 8192


def test_vanilla_sampling_is_the_reference_law(
    folder: Path, reference: ChameleonForConditionalGeneration
) -> None:
    """What was drawn lies among the 2000 likeliest codes of transformers' guided law, at every
    position.
    """
    target, caption = load(folder, (64, 64)), CAPTIONS[1]
    results, engine = draw(target, {"sampling": SAMPLED}, None, [caption])
    tokens = results[caption].tokens.tolist()
    images = [tokens[:n] for n in range(16)]
    logits = guided_logits(reference, prompts(target, caption), images, cols=4)
    ranks = (logits > logits.gather(1, torch.tensor(tokens)[:, None])).sum(1)
    assert int(ranks.max()) < 2000
    used = torch.stack([found for _, found in engine.paths()])
    torch.testing.assert_close(used, logits[1:], atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_row_ends_count_nowhere(folder: Path, size: tuple[int, int]) -> None:
    """An image has rows x cols tokens. Vanilla draws each in one pass, row ends or not; a chain of
    five drafts that all stand draws six in each.
    """
    target = load(folder, size)
    count = target.grid.tokens
    known = vanilla_tokens(target, CAPTIONS[:1])

    @cache
    def statistics(mode: str) -> Result:
        results, _ = draw(
            target, {**MODES[mode], "sampling": GREEDY}, drafter_for(mode, known), [CAPTIONS[0]]
        )
        return results[CAPTIONS[0]]

    plain = statistics("vanilla").statistics
    assert plain.emitted.tolist() == [1] * (count - 1)
    assert plain.mean_accepted_length == plain.step_compression == 1
    for mode in (
        "chain",
        "static",
        "dynamic",
        "adjacency",
        "jacobi",
        "long window",
        "window that branches",
    ):
        result = statistics(mode)
        assert int(result.statistics.emitted.sum()) == count - 1
        assert result.tokens.shape == (count,)
        assert result.statistics.position[0] == 1
    # as deep as their trees reach, whatever rows end on the way
    for mode in ("chain", "static", "dynamic"):
        found = statistics(mode).statistics
        most = int(found.depth.max()) + 1
        assert found.emitted[:-1].tolist() == [most] * (math.ceil((count - 1) / most) - 1)


@pytest.mark.parametrize("policy", ["chain", "dynamic"])
@pytest.mark.parametrize("kind", ["eagle", "independent"])
def test_drafters_with_a_cache(folder: Path, kind: str, policy: str) -> None:
    """They see image tokens alone, at the places that these have in the official sequence; greedy
    drawing stays vanilla's. The target itself as the drafter is believed, most of the time.
    """
    target = load(folder, (64, 96))
    config = target.transformer.config
    torch.manual_seed(0)
    drafter: Drafter
    if kind == "eagle":
        layer = replace(
            config, n_layers=1, vocab_size=0, qk_norm=False, input_norm=False, final_norm=False
        )
        drafter = EagleDrafter(target, EagleLayer(layer), filler=None)
    else:
        drafter = IndependentDrafter(target, target.transformer, target.conditioner)
    known = vanilla_tokens(target, CAPTIONS)
    tree = dict(MODES[policy]["tree"])  # type: ignore[call-overload]
    results, _ = draw(
        target, {"drafter": kind, "tree": tree, "sampling": GREEDY}, drafter, CAPTIONS, batch=2
    )
    assert all(torch.equal(results[caption].tokens, known[caption]) for caption in CAPTIONS)
    if kind == "independent":
        lengths = torch.cat([result.statistics.emitted for result in results.values()]).float()
        assert lengths.mean() > 2


@pytest.mark.parametrize("count", [1, 4, 9, 24])
def test_teacher_forcing_is_decoding(
    folder: Path, reference: ChameleonForConditionalGeneration, count: int
) -> None:
    """Whole images in one pass, as training reads them: the laws after every token, both streams,
    are transformers'.
    """
    target = load(folder, (64, 96))
    codes = torch.randint(8192, (1, count), generator=torch.Generator().manual_seed(1))
    features = teacher_forced(target, target.encode([CAPTIONS[0]], guided=True), codes.repeat(2, 1))
    assert features.shape == (2, target.prompt_len + count, target.transformer.config.dim)
    conditional, unconditional = target.head(features[:, target.prompt_len - 1 :])
    images = [codes[0, :n].tolist() for n in range(count + 1)]
    expected = guided_logits(reference, prompts(target, CAPTIONS[0]), images, cols=4)
    torch.testing.assert_close(
        unconditional + 3 * (conditional - unconditional), expected, atol=2e-4, rtol=1e-4
    )


# faults


def test_sizes_and_files_are_refused_in_words(folder: Path) -> None:
    for width in (48, 100):
        with pytest.raises(ValueError, match=f"width: must be a multiple of 32, got {width}"):
            Lumina(transformer="x", width=width)
    for width in (0, 4096):
        with pytest.raises(ValueError, match=r"width.*32, 2048"):
            Lumina(transformer="x", width=width)
    with pytest.raises(ValueError, match="height"):
        Lumina(transformer="x", height=20000)
    whole = Lumina(
        transformer=str(folder), tokenizer=str(folder / "tokenizer.json"), width=64, height=32
    )
    target = whole.load(torch.device("cpu"), torch.float32)
    assert (target.name, target.grid.rows, target.grid.cols) == (f"lumina-mgpt-64x32-{SIZE}", 2, 4)
    assert target.decode(torch.zeros(1, 8, dtype=torch.int64)).shape == (
        1,
        3,
        2 * VQ.factor,
        4 * VQ.factor,
    )
    entry = Lumina(transformer=str(folder / "none"))
    with pytest.raises(ValueError, match="none: no such file or folder"):
        entry.load(torch.device("cpu"), torch.float32)
    body = load(folder, (64, 64)).transformer
    with pytest.raises(ValueError, match="row_end must be given exactly if"):
        Target("x", body, torch.nn.Identity(), None, Sampling())
