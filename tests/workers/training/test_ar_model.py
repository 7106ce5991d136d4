"""Training of targets: the loss falls, resuming equals not stopping, training's forward pass is the
model's.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from recipes.evaluate import evaluate_target
from recipes.optimisers import MuonConfig, orthogonalise
from recipes.target import load_model, train_target
from workers.models.families.scenes import ARModel
from workers.models.own_files import save
from workers.models.transformer import Transformer, TransformerConfig
from workers.scenes.captions import caption
from workers.scenes.images import sample_attributes
from workers.training.drafters import ar_loss, build_model, evaluate_drafter
from workers.training.examples import Examples
from workers.training.forward import features
from workers.training.loop import batch_indices

SMALL = TransformerConfig(
    dim=32,
    n_layers=2,
    n_heads=2,
    ffn_dim=48,
    vocab_size=16,
    prompt_rope="identity",
    prompt_len=12,
    rows=4,
    cols=4,
)
RUN = MuonConfig(steps=12, batch=8, warmup=3, save_every=6, log_every=6, bf16=False)


def quiet(_: str) -> None: ...


def examples(count: int) -> Examples:
    """Images whose tokens follow from the caption: easy to learn."""
    rows = sample_attributes(0, range(count))
    tokens = (rows[:, 6:7] * 2 + torch.arange(16) % 3) % 16
    return Examples([caption(row) for row in rows.tolist()], tokens)


def model(seed: int = 0) -> ARModel:
    return build_model(SMALL, {"kind": "scenes"}, seed)


OPTIONS: list[dict[str, object]] = [
    {},
    {"prompt_rope": "zero"},
    {"rope": "line"},
    {"n_kv_heads": 1},
    {"qk_norm": True},
    {"input_norm": False, "final_norm": False},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_training_forward_is_the_models_own(options: dict[str, object]) -> None:
    torch.manual_seed(0)
    body = Transformer(dataclasses.replace(SMALL, **options))  # type: ignore[arg-type]
    x, positions = torch.randn(3, 20, 32), torch.arange(20)
    torch.testing.assert_close(
        features(body, x, positions), body(x, positions), atol=2e-5, rtol=1e-4
    )


def test_loss_falls_and_the_model_learns_its_captions(tmp_path: Path) -> None:
    data = examples(64)
    config = dataclasses.replace(RUN, steps=60)
    average, journal = train_target(model(), data, data, config, tmp_path, name="toy", log=quiet)
    losses = [entry["loss"] for entry in journal if "loss" in entry]
    assert losses[0] == pytest.approx(torch.tensor(16.0).log().item(), abs=0.05), "starts uniform"
    assert sum(losses[-5:]) / 5 < 1.0
    figures = evaluate_target(average.as_target(), data)
    assert figures["cross-entropy cond"] < figures["cross-entropy null"]
    assert 0 < figures["top-1"] <= figures["top-10"] <= 1
    assert (journal[-1]["step"], len(losses)) == (60, 60)
    assert journal[-1]["cross-entropy cond"] == pytest.approx(figures["cross-entropy cond"])


def test_the_weights_with_the_best_held_out_cross_entropy_are_kept(tmp_path: Path) -> None:
    """Of random tokens, the weights that are nearest to uniform are the best: the earliest."""
    torch.manual_seed(0)
    data = examples(16)
    held_out = Examples(data.captions, torch.randint(16, (16, 16)))
    config = dataclasses.replace(RUN, steps=30, save_every=10)
    average, journal = train_target(
        model(), data, held_out, config, tmp_path, name="toy", log=quiet
    )
    found = [entry["cross-entropy cond"] for entry in journal if "loss" not in entry]
    assert found[0] == min(found) < found[-1]
    kept = evaluate_target(load_model(tmp_path / "target.safetensors").as_target(), held_out)
    assert kept["cross-entropy cond"] == pytest.approx(found[0], abs=0.02), "rounded to fp16"
    final = evaluate_target(average.as_target(), held_out)
    assert final["cross-entropy cond"] == pytest.approx(found[-1])


def test_a_resumed_run_equals_an_undisturbed_one(tmp_path: Path) -> None:
    data = examples(20)  # smaller than three batches: resuming crosses epochs
    whole, curve = train_target(model(), data, data, RUN, tmp_path / "a", name="toy", log=quiet)

    class Killed(Exception): ...

    def kill(line: str) -> None:
        if "held out" in line:
            raise Killed

    # dies after the first save's evaluation, before its checkpoint: starts again
    with pytest.raises(Killed):
        train_target(model(), data, data, RUN, tmp_path / "b", name="toy", log=kill)
    _, started_again = train_target(
        model(), data, data, RUN, tmp_path / "b", name="toy", resume=True, log=quiet
    )
    assert started_again == curve

    def kill_later(line: str) -> None:
        if "step 12/" in line:
            raise Killed

    with pytest.raises(Killed):
        train_target(model(), data, data, RUN, tmp_path / "c", name="toy", log=kill_later)
    again, resumed = train_target(
        model(1), data, data, RUN, tmp_path / "c", name="toy", resume=True, log=quiet
    )
    assert resumed == curve
    other = dataclasses.replace(RUN, steps=24, save_every=3)
    with pytest.raises(ValueError, match=r"another steps \(12, now 24\)"):
        train_target(model(), data, data, other, tmp_path / "c", name="toy", resume=True, log=quiet)
    file, checkpoint = (
        tmp_path / "c" / f"target.{end}" for end in ("safetensors", "checkpoint.pt")
    )
    exported = file.read_bytes()
    file.unlink()
    train_target(model(), data, data, RUN, tmp_path / "c", name="toy", resume=True, log=quiet)
    assert file.read_bytes() == exported, "a finished training is exported again"
    state = torch.load(checkpoint, weights_only=True)
    del state["config"]
    torch.save(state, checkpoint)
    with pytest.raises(ValueError, match="another version of specfrontier; start without --resume"):
        train_target(model(), data, data, RUN, tmp_path / "c", name="toy", resume=True, log=quiet)
    for (name, a), b in zip(whole.state_dict().items(), again.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


def test_files_carry_the_model(tmp_path: Path) -> None:
    made = model()
    torch.nn.init.normal_(made.head.weight)
    save(tmp_path / "m.safetensors", made, made.settings())
    read = load_model(tmp_path / "m.safetensors")
    data = examples(4)
    left, right = (
        evaluate_target(m.as_target(), data, scales=())["cross-entropy cond"] for m in (made, read)
    )
    assert left == pytest.approx(right, rel=2e-2), "fp16 on disk"


def test_captions_are_dropped_at_the_stated_rate() -> None:
    made, data = model(), examples(16)
    torch.nn.init.normal_(made.head.weight)
    loss = ar_loss(made, data)
    with torch.no_grad():
        values = {
            float(loss(torch.zeros(1, dtype=torch.int64), generator))
            for generator in generators(60)
        }
    assert len(values) == 2, "each draw sees either the caption or the null prompt"


def generators(count: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(i) for i in range(count)]


def test_every_epoch_shows_every_example_once() -> None:
    shown = torch.cat([batch_indices(3, step, 4, 10) for step in range(5)])
    assert sorted(shown[:10].tolist()) == list(range(10)) == sorted(shown[10:].tolist())
    assert shown[:10].tolist() != shown[10:].tolist()


def test_schedule_rises_stays_and_falls_to_zero() -> None:
    config = dataclasses.replace(RUN, steps=100, warmup=10, decay=0.4)
    rates = [config.learning_rate(step) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[10:60] == [1.0] * 50
    assert rates[-1] == pytest.approx(1 / 40)


def test_an_independent_drafter_learns_what_the_target_draws(tmp_path: Path) -> None:
    """The target's token is the same everywhere for a caption, so a small model learns its
    probabilities.
    """
    target = model()
    torch.nn.init.normal_(target.head.weight, std=0.4)
    data = examples(64)
    tokens = torch.zeros_like(data.tokens)
    codes = target.conditioner.codes(data.captions)
    with torch.no_grad():
        for n in range(16):
            x = torch.cat([target.conditioner.embed(codes), target.embed(tokens[:, :n])], dim=1)
            logits = target.head(features(target.transformer, x, torch.arange(x.shape[1]))[:, -1])
            tokens[:, n] = torch.multinomial(
                logits.softmax(-1), 1, generator=torch.Generator().manual_seed(n)
            )[:, 0]
    drawn = Examples(data.captions, tokens)
    small = build_model(dataclasses.replace(SMALL, n_layers=1), {"kind": "scenes"}, 1)
    before = evaluate_drafter(target.as_target(), small.as_target(), drawn)["TV"]
    config = dataclasses.replace(RUN, steps=60, ema=0.9)
    average, _ = train_target(
        small, drawn, drawn, config, tmp_path, name="toy", component="independent", log=quiet
    )
    assert (tmp_path / "independent.safetensors").exists()
    assert evaluate_drafter(target.as_target(), average.as_target(), drawn)["TV"] < 0.9 * before


@pytest.mark.parametrize("shape", [(2, 8, 20), (1, 20, 8)])
def test_orthogonalise_brings_singular_values_near_one(shape: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalise(torch.randn(shape), torch.bfloat16).float())
    assert values.min() > 0.5
    assert values.max() < 1.4


@pytest.mark.parametrize(
    ("change", "message"),
    [({"steps": 0}, "at least 1 step"), ({"batch": 0}, "1 example"), ({"ema": 1.0}, "ema")],
)
def test_senseless_configs_are_refused(change: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(RUN, **change)  # type: ignore[arg-type]


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path: Path) -> None:
    made = model()
    made.head.weight.data.fill_(float("nan"))
    with pytest.raises(ValueError, match="loss is nan at step 0"):
        train_target(made, examples(8), examples(8), RUN, tmp_path, name="toy", log=quiet)
