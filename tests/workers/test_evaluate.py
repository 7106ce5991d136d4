"""The evaluator on the built-in and a tiny model: what it loads, draws, times and measures; all is
made once.
"""

from __future__ import annotations

import io
import json
import math
import threading
from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image

from search_spaces.acceptance import EXACT
from search_spaces.drafters import Medusa
from search_spaces.neighbourhoods import Additive
from search_spaces.params import ConfigError
from search_spaces.plugins import PLUGINS_VARIABLE
from search_spaces.trees import Chain
from search_spaces.trial import DecodingConfig, Sampling
from tests.fakes.tiny_models import tiny_scenes
from tests.fakes.waiting import HANG_S
from workers.data.records import (
    ACCEPTANCE,
    features_of,
    float_lists,
    read_shard,
    tokens_of,
    write_shard,
)
from workers.data.reference import read_reference
from workers.data.shards import (
    PREDICTIONS,
    TOKEN_CHECK,
    MeasureTask,
    PredictTask,
    QualityShard,
    ReferenceTask,
    Serializable,
    TimingSession,
)
from workers.data.storage import Storage
from workers.decoding.engine import DecodingError
from workers.decoding.state import Batch
from workers.decoding.token_checker import TokenChecker, check_images
from workers.evaluate import TASK_KINDS, Evaluator, makes
from workers.loading.models import Capabilities
from workers.loading.models_yaml import folder_entry
from workers.metrics.acceptance import acceptance_file
from workers.models.checkpoint_files import WeightsError
from workers.runtime.engines import CancellableEngine, Cancelled
from workers.runtime.loaded import LoadedSweep
from workers.runtime.memory import OutOfMemory
from workers.runtime.numerics import measure_numerics
from workers.runtime.specification import WorkerSpec

SAMPLING = Sampling(temperature=1.0, cfg=1.0)
VANILLA = DecodingConfig(sampling=SAMPLING)
CONFIG = DecodingConfig.from_mapping(
    {
        "drafter": "eagle",
        "tree": {"policy": "chain", "length": 3},
        "acceptance": {"neighbourhood": "additive", "k": 50, "delta": 0.2},
    }
).with_sampling(SAMPLING)
COUNTED = (
    "clip_score",
    "caption_accuracy",
    "mean_accepted_length",
    "step_compression",
    "target_passes",
)
METRICS = (*COUNTED, "fid", "speedup")


def spec(store: Path, weights: Path | None = None, count: int = 24, **changes: Any) -> WorkerSpec:
    """A worker of the weights in a folder, or of the built-in ones; `count` captions."""
    models = None if weights is None else folder_entry(weights).to_mapping()
    captions = {"source": "scenes", "count": count, "seed": 1}
    return WorkerSpec(store=str(store), device="cpu", models=models, captions=captions, **changes)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model, which draws an image in 36 tokens."""
    return tiny_scenes(tmp_path_factory.mktemp("weights"))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sweep")


@pytest.fixture(scope="module")
def evaluator(home: Path, weights: Path) -> Evaluator:
    return Evaluator(spec(home, weights))


def test_a_plugin_that_this_machine_lacks_is_named_before_the_weights_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PLUGINS_VARIABLE, "no_such_rules")
    with pytest.raises(ConfigError, match=r"no_such_rules.*PYTHONPATH"):
        Evaluator(spec(tmp_path, tmp_path / "no weights"))


@pytest.fixture(scope="module")
def built_in(evaluator: Evaluator, tmp_path_factory: pytest.TempPathFactory) -> Evaluator:
    return Evaluator(spec(tmp_path_factory.mktemp("built_in")))


@pytest.fixture(scope="module")
def shards(evaluator: Evaluator) -> list[QualityShard]:
    """Two shards of the chain, drawn."""
    pieces = [QualityShard(CONFIG, start, start + 8, 1, 8) for start in (0, 8)]
    assert [evaluator.make(piece)["ran"] for piece in pieces] == [True, True]
    return pieces


def names(evaluator: Evaluator, shards: list[QualityShard]) -> tuple[str, ...]:
    return tuple(shard.name(evaluator.experiment) for shard in shards)


def test_facts_are_plain_and_say_what_there_is(built_in: Evaluator) -> None:
    facts = json.loads(json.dumps(built_in.facts()))
    target = built_in.models.target
    capabilities = Capabilities.from_mapping(facts["capabilities"])
    assert capabilities == Capabilities.of(built_in.models)
    assert (capabilities.target, capabilities.vocab_size) == (target.name, target.vocab_size)
    assert (capabilities.rows, capabilities.cols, capabilities.image_size) == (12, 12, 48)
    assert set(capabilities.drafters) == {"eagle", "eagle3", "medusa", "independent", "vertical"}
    assert [kind for kind, levels in capabilities.drafters.items() if levels is not None] == [
        "medusa"
    ]
    assert capabilities.sampling == target.sampling
    assert facts["captions"]["count"] == 24
    assert set(facts["models"]) >= {"target", "tokenizer", "drafters.eagle"}
    assert facts["extractors"]["clip_score"].startswith("scenes-clip@")
    assert facts["precision"] == "float32"
    assert facts["numerics"] == measure_numerics(
        target, built_in.extractors, [caption.text for caption in built_in.captions]
    )
    assert facts["kernels"] == ("triton" if facts["device"].startswith("cuda") else "torch")
    assert facts["metrics"]["speedup"] | {"about": ""} == {
        "direction": "maximize", "unit": "x", "about": "", "needs": ["timings", "passes"],
    }  # fmt: skip
    assert "fid" not in facts["metrics"]
    assert facts["without"]["fid"] == "needs reference"
    assert facts["reference"] is None


def test_a_shard_is_drawn_once(
    evaluator: Evaluator, shards: list[QualityShard], home: Path
) -> None:
    name = shards[0].name(evaluator.experiment)
    before = (home / name).stat().st_mtime_ns
    answer = evaluator.run({"kind": "quality", **shards[0].to_mapping()})
    assert (home / name).stat().st_mtime_ns == before
    assert answer["ran"] is False
    assert answer["images"] == 8
    assert answer["seconds"] > 0
    assert answer["worker"] == "worker"
    table, meta = read_shard(evaluator.storage, name)
    assert table.num_rows == 8
    assert table.column("caption").to_pylist() == [
        caption.text for caption in evaluator.captions[:8]
    ]
    assert {"features.scenes", "score.clip_score", "score.caption_accuracy"} <= set(
        table.column_names
    )
    assert DecodingConfig.from_mapping(meta["config"]) == CONFIG
    assert meta["experiment"] == evaluator.experiment.digest()
    assert (meta["name"], meta["setting"], meta["captions"]) == (
        name,
        CONFIG.digest(),
        list(range(8)),
    )


def test_the_quicker_of_two_workers_writes_the_shard(
    evaluator: Evaluator, shards: list[QualityShard], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file appears while this worker draws: it stays, as a trial may have been measured with
    it.
    """
    shard, exists = shards[0], Storage.exists
    name = evaluator.make(shard)["name"]
    written, asked = (home / name).stat(), list[str]()

    def appears(storage: Storage, file: str) -> bool:
        asked.append(file)
        return len(asked) > 1 and exists(storage, file)

    monkeypatch.setattr(Storage, "exists", appears)
    assert not evaluator.make(shard)["ran"]
    assert asked == [name, name]
    assert ((home / name).stat().st_ino, (home / name).stat().st_mtime_ns) == (
        written.st_ino,
        written.st_mtime_ns,
    )


def test_images_do_not_depend_on_the_batch_or_the_worker(
    evaluator: Evaluator, shards: list[QualityShard], weights: Path, tmp_path: Path
) -> None:
    other = Evaluator(spec(tmp_path, weights, worker="another"))
    piece = replace(shards[0], batch=3)
    answer = other.make(piece)
    assert answer["worker"] == "another"
    assert answer["name"] == shards[0].name(evaluator.experiment)
    columns = ["tokens", "score.clip_score"]
    one, two = (read_shard(e.storage, answer["name"], columns)[0] for e in (evaluator, other))
    assert torch.equal(tokens_of(one), tokens_of(two))
    scores = [table.column("score.clip_score").to_pylist() for table in (one, two)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-5)


def test_measuring_reads_what_was_drawn(
    evaluator: Evaluator, shards: list[QualityShard], home: Path
) -> None:
    task = MeasureTask(CONFIG, names(evaluator, shards), (), (), METRICS)
    found = evaluator.run({"kind": "measure", **task.to_mapping()})
    metrics = found["metrics"]
    assert set(metrics) == set(COUNTED)
    assert found["skipped"] == {"fid": "needs reference", "speedup": "nothing was timed"}
    table = [read_shard(evaluator.storage, name)[0] for name in names(evaluator, shards)]
    rounds = [row for part in table for row in part.column("emitted").to_pylist()]
    passes = sum(map(len, rounds))
    assert metrics["mean_accepted_length"]["value"] == pytest.approx(sum(map(sum, rounds)) / passes)
    assert metrics["target_passes"]["value"] == pytest.approx(passes / 16)
    assert metrics["mean_accepted_length"]["value"] > 1
    cosines = [score for part in table for score in part.column("score.clip_score").to_pylist()]
    assert metrics["clip_score"]["value"] == pytest.approx(sum(cosines) / 16)
    assert [images for images, _ in found["history"]] == [8, 16]
    assert found["history"][1][1] == metrics
    assert found["history"][0][1]["clip_score"]["value"] == pytest.approx(sum(cosines[:8]) / 8)
    stored = json.loads((home / task.name()).read_text())
    assert stored["metrics"] == metrics
    once = replace(task, halfway=False)
    assert evaluator.make(once)["history"] == [(16, metrics)], "a rung of a race"
    assert once.name() != task.name()
    assert evaluator.make(task)["ran"] is False


def test_a_measurement_checks_the_tokens(evaluator: Evaluator, shards: list[QualityShard]) -> None:
    """A relaxed rule's are not the target's own."""
    task = MeasureTask(CONFIG, names(evaluator, shards), (), (), ("target_passes",), check=True)
    found = evaluator.make(task)["check"]
    table = pa.concat_tables(
        [read_shard(evaluator.storage, name)[0] for name in names(evaluator, shards)]
    )
    captions = table.column("caption").to_pylist()
    target = evaluator.models.target
    assert found == asdict(check_images(target, SAMPLING, captions, tokens_of(table)))
    assert found["images"] == 16
    assert "check" not in evaluator.make(replace(task, check=False))


def test_a_check_that_does_not_fit_halves_and_fails_no_measurement(
    evaluator: Evaluator, shards: list[QualityShard], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, sizes = TokenChecker._count, []

    def count(self: TokenChecker, u: torch.Tensor, u_of_codes: torch.Tensor) -> None:
        sizes.append(len(u))
        if len(u) > limit:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        real(self, u, u_of_codes)

    monkeypatch.setattr(TokenChecker, "_count", count)
    limit = 2
    task = MeasureTask(CONFIG, names(evaluator, shards), (), (), ("mean_tree_depth",), check=True)
    found = evaluator.make(task)
    assert found["check"]["images"] == 16
    assert sizes == [4, *[2] * 8]
    limit = 0
    task = replace(task, metrics=("step_compression",))
    found = evaluator.make(task)
    assert "check" not in found
    assert "out of memory at 1 images" in found["skipped"][TOKEN_CHECK]
    assert "step_compression" in found["metrics"]


def test_shards_in_any_order_measure_the_same(
    evaluator: Evaluator, shards: list[QualityShard]
) -> None:
    one, two = (
        evaluator.make(MeasureTask(CONFIG, order, (), names(evaluator, shards), METRICS))
        for order in (names(evaluator, shards), names(evaluator, shards[::-1]))
    )
    assert one["metrics"] == two["metrics"]
    assert one["history"] == two["history"]


def test_pictures_stand_for_the_trial(
    evaluator: Evaluator, shards: list[QualityShard], home: Path
) -> None:
    found = evaluator.make(MeasureTask(CONFIG, names(evaluator, shards), (), (), METRICS))
    digest = CONFIG.digest()
    assert found["pictures"] == [f"pictures/{digest}.png", f"heatmaps/{digest}.png"]
    grid = Image.open(home / found["pictures"][0])
    assert grid.size == (4 * 48 + 6, 4 * 48 + 6)
    tokens = tokens_of(read_shard(evaluator.storage, names(evaluator, shards)[0], ["tokens"])[0])
    first = evaluator.models.target.decode(tokens[:1])[0]
    corner = (
        torch.tensor(list(grid.crop((0, 0, 48, 48)).tobytes())).view(48, 48, 3).permute(2, 0, 1)
    )
    assert (corner - first * 255).abs().max() <= 0.51
    assert Image.open(io.BytesIO((home / found["pictures"][1]).read_bytes())).width > 100


def test_accepted_drafts_are_counted_by_group_of_captions(
    evaluator: Evaluator, shards: list[QualityShard], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a chain, the passes say it all: a draft is tested if those before it were accepted, and
    there is one before the image's last token.
    """
    captions = [
        replace(caption, group=("even", "odd")[place % 2])
        for place, caption in enumerate(evaluator.captions)
    ]
    monkeypatch.setattr(evaluator, "captions", captions)
    evaluator.make(
        MeasureTask(
            CONFIG, names(evaluator, shards), (), (), ("target_passes", "mean_accepted_length")
        )
    )
    file = acceptance_file(CONFIG.digest())
    found = {
        (row["group"], row["block"], row["drafts"]): (row["tested"], row["accepted"])
        for row in read_shard(evaluator.storage, file)[0].to_pylist()
    }
    places = {caption.id: place for place, caption in enumerate(captions)}
    expected: Counter[tuple[str, int, int, bool]] = Counter()
    for name in names(evaluator, shards):
        for row in read_shard(evaluator.storage, name)[0].to_pylist():
            place = places[row["caption_id"]]
            position = 1
            for emitted, nodes in zip(row["emitted"], row["nodes"], strict=True):
                last = min(emitted, nodes, len(row["tokens"]) - position - 1)
                for drafts in range(last + 1):
                    expected[captions[place].group, place, drafts, drafts < emitted] += 1
                position += emitted
    assert found == {
        key: (expected[*key, True] + expected[*key, False], expected[*key, True]) for key in found
    }
    assert sum(tested for tested, _ in found.values()) == expected.total()


def test_images_of_an_earlier_version_have_no_counts(
    evaluator: Evaluator, shards: list[QualityShard]
) -> None:
    storage = evaluator.storage
    name, *_ = names(evaluator, shards)
    table, metadata = read_shard(storage, name)
    file = acceptance_file(CONFIG.digest())
    if storage.exists(file):
        storage.remove(file)
    try:
        write_shard(storage, name, table.drop_columns(list(ACCEPTANCE)), metadata)
        found = evaluator.make(MeasureTask(CONFIG, (name,), (), (), ("target_passes",)))
    finally:
        write_shard(storage, name, table, metadata)
    assert found["metrics"]["target_passes"]["value"] > 0
    assert found["pictures"]
    assert not storage.exists(file)


def test_the_reference_is_made_once_and_must_stay_the_same(tmp_path: Path) -> None:
    section = {"source": "scenes", "count": 80, "seed": 2}
    maker = Evaluator(spec(tmp_path, reference=section))
    facts = maker.facts()
    assert facts["reference"]["count"] == 80
    assert facts["reference"]["extractor"] == facts["extractors"]["features"]
    assert {"fid", "drift", "kid", "recall"} <= facts["metrics"].keys()
    assert maker.run({"kind": "reference"})["ran"] is True
    assert maker.make(ReferenceTask())["ran"] is False
    with pytest.raises(ValueError, match="80 images of scenes"):
        Evaluator(spec(tmp_path, reference=section | {"count": 70})).make(ReferenceTask())


def test_distances_are_those_of_the_stored_features(
    evaluator: Evaluator, shards: list[QualityShard], weights: Path, tmp_path: Path
) -> None:
    """120 made-up rows beside a real reference: fid and drift equal plain NumPy on what the files
    hold.
    """
    other = Evaluator(
        spec(tmp_path, weights, 120, reference={"source": "scenes", "count": 80, "seed": 2})
    )
    other.make(ReferenceTask())
    real = read_reference(other.storage).features[0]
    table, meta = read_shard(evaluator.storage, names(evaluator, shards)[0])
    made: dict[str, list[str]] = {}
    for who, scale in (("trial", 1.2), ("baseline", 1.0)):
        for part in range(3):
            generator = torch.Generator().manual_seed(part)
            rows = pa.concat_tables([table] * 5)
            ids = pa.array(range(40 * part, 40 * part + 40))
            features = float_lists(
                (torch.randn(40, 64, generator=generator) * scale).half().float()
            )
            rows = rows.set_column(rows.column_names.index("caption_id"), "caption_id", ids)
            rows = rows.set_column(
                rows.column_names.index("features.scenes"), "features.scenes", features
            )
            made.setdefault(who, []).append(f"shards/quality-{who}{part}.parquet")
            write_shard(other.storage, made[who][-1], rows, meta | {"name": made[who][-1]})
    wanted = (
        "fid",
        "fid_debiased",
        "drift",
        "fid_gain",
        "kid",
        "precision",
        "recall",
        "inception_score",
    )
    found = other.make(
        MeasureTask(CONFIG, tuple(made["trial"]), (), tuple(made["baseline"]), wanted)
    )
    assert set(found["metrics"]) == set(wanted)
    trial, baseline = (
        torch.cat([features_of(read_shard(other.storage, name)[0], "scenes") for name in made[who]])
        for who in made
    )
    assert found["metrics"]["fid"]["value"] == pytest.approx(numpy_distance(trial, real), rel=1e-6)
    assert found["metrics"]["drift"]["value"] == pytest.approx(
        numpy_distance(trial, baseline), rel=1e-6
    )
    assert [images for images, _ in found["history"]] == [80, 120]
    assert found["history"][0][1]["fid"]["value"] == pytest.approx(
        numpy_distance(trial[:80], real), rel=1e-6
    )
    assert found["history"][1][1].keys() == set(wanted)
    assert all(
        len(entry["replicates"]) == 24
        for _, metrics in found["history"]
        for entry in metrics.values()
    )


def test_unusable_shards_are_all_named_and_nothing_is_measured(
    evaluator: Evaluator, shards: list[QualityShard], weights: Path, tmp_path: Path
) -> None:
    other = Evaluator(spec(tmp_path, weights))
    first, second = names(evaluator, shards)
    whole = evaluator.storage.read(first)
    other.storage.write(first, whole[:900] + bytes([whole[900] ^ 1]) + whole[901:])
    task = MeasureTask(CONFIG, (first, second), (), (), METRICS)
    answer = other.run({"kind": "measure", **task.to_mapping()})
    assert answer.keys() == {"unusable"}
    assert {
        name: reason.split(": ")[1].split(" ")[0] for name, reason in answer["unusable"].items()
    } == {
        first: "damaged",
        second: "missing",
    }
    assert other.run({"kind": "quality", **shards[0].to_mapping()})["unusable"].keys() == {first}
    other.storage.write(first, evaluator.storage.read(second))
    answer = other.run({"kind": "measure", **task.to_mapping()})
    assert "holds the content of " + second in answer["unusable"][first]
    assert not other.storage.exists(task.name())


def test_a_damaged_measurement_is_computed_again(
    evaluator: Evaluator, shards: list[QualityShard], home: Path
) -> None:
    task = MeasureTask(CONFIG, names(evaluator, shards), (), (), METRICS[:1])
    right = evaluator.make(task)
    file = home / task.name()
    for damaged in (file.read_bytes().replace(b'"n": 16', b'"n": 17'), b""):
        file.write_bytes(damaged)
        again = evaluator.make(task)
        assert (again["ran"], again["metrics"]) == (True, right["metrics"])
    assert evaluator.make(task)["ran"] is False


def test_a_stored_measurement_of_a_damaged_shard_names_it(
    evaluator: Evaluator, shards: list[QualityShard], home: Path
) -> None:
    """A driver that was killed before it wrote a trial's record finds the measurement, and may find
    its shards torn.
    """
    task = MeasureTask(CONFIG, names(evaluator, shards), (), (), METRICS[:1])
    right = evaluator.make(task)
    file = home / task.quality[0]
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    assert evaluator.run({"kind": "measure", **task.to_mapping()})["unusable"].keys() == {
        task.quality[0]
    }
    file.unlink()
    assert evaluator.run({"kind": "measure", **task.to_mapping()})["unusable"].keys() == {
        task.quality[0]
    }
    evaluator.make(shards[0])
    assert evaluator.make(task) == right | {"ran": False}


def numpy_distance(a: torch.Tensor, b: torch.Tensor) -> float:
    x, y = a.double().numpy(), b.double().numpy()
    s, t = np.cov(x, rowvar=False), np.cov(y, rowvar=False)
    roots = np.sqrt(np.linalg.eigvals(s @ t).astype(complex)).real.sum()
    return float(np.square(x.mean(0) - y.mean(0)).sum() + np.trace(s) + np.trace(t) - 2 * roots)


def test_timing_takes_turns_and_is_kept(
    evaluator: Evaluator, shards: list[QualityShard], home: Path
) -> None:
    session = TimingSession((VANILLA, CONFIG), 0, 4, (1, 2), 2)
    answer = evaluator.run({"kind": "timing", **session.to_mapping()})
    assert answer["ran"] is True
    assert evaluator.make(session) == answer | {"ran": False}
    table, metadata = read_shard(evaluator.storage, answer["name"], kind="timing")
    rows = table.to_pylist()
    assert metadata["clock"] == "cpu time"
    assert [row["caption_ids"] for row in rows if row["batch"] == 2 and row["repetition"] == 0][
        ::2
    ] == [[0, 1], [2, 3]]
    for unit in range(0, len(rows), 2):
        assert {row["setting"] for row in rows[unit : unit + 2]} == {
            VANILLA.digest(),
            CONFIG.digest(),
        }
    assert len(rows) == 2 * 2 * (4 + 2)
    assert all(0 < row["prefill"] < row["seconds"] < 1.1 * row["wall"] for row in rows)
    assert {row["passes"] for row in rows if row["setting"] == VANILLA.digest()} == {35}
    wanted = ("speedup", "latency", "target_passes")
    found = evaluator.make(
        MeasureTask(CONFIG, names(evaluator, shards), (answer["name"],), (), wanted)
    )
    metrics = found["metrics"]
    assert found["passes"]["1"][0] == pytest.approx(metrics["target_passes"]["value"])
    assert found["device"].endswith(", 1 thread")
    assert found["passes"]["2"][0] >= found["passes"]["1"][0]
    own = [row for row in rows if row["setting"] == CONFIG.digest() and row["batch"] == 1]
    logs = [
        math.log(
            row["prefill"]
            + found["passes"]["1"][0] * (row["seconds"] - row["prefill"]) / row["passes"]
        )
        for row in own
    ]
    vanilla = [
        math.log(row["seconds"])
        for row in rows
        if row["setting"] == VANILLA.digest() and row["batch"] == 1
    ]
    assert metrics["speedup"]["value"] == pytest.approx(math.exp(sum(vanilla) / 8 - sum(logs) / 8))
    assert metrics["latency"]["value"] == pytest.approx(math.exp(sum(logs) / 8))
    assert metrics["speedup"]["n"] == 16
    task = MeasureTask(CONFIG, names(evaluator, shards), (answer["name"],), (), wanted)
    file = home / answer["name"]
    file.write_bytes(file.read_bytes()[:-9])
    assert evaluator.run({"kind": "measure", **task.to_mapping()})["unusable"].keys() == {
        answer["name"]
    }
    file.unlink()


def test_settings_that_do_not_fit_are_refused_before_they_run(
    built_in: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CancellableEngine, "step", lambda *_: pytest.fail("it ran"))
    wide = replace(
        CONFIG, acceptance=replace(CONFIG.acceptance, neighbourhood=Additive(k=5000, delta=0.1))
    )
    with pytest.raises(ConfigError, match="5000 neighbours"):
        built_in.make(QualityShard(wide, 0, 2, 1, 2))
    deep = replace(CONFIG, drafter=Medusa(), policy=Chain(length=50))
    with pytest.raises(ConfigError, match="that the medusa drafter can draft"):
        built_in.make(QualityShard(deep, 0, 2, 1, 2))
    with pytest.raises(ValueError, match="the sweep has 24"):
        built_in.make(QualityShard(VANILLA, 20, 28, 1, 2))
    with pytest.raises(ValueError, match="reference, predict, quality, timing, measure"):
        built_in.run({"kind": "generate"})


def test_a_new_kind_of_task_is_one_function(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    @dataclass(frozen=True, slots=True)
    class Count(Serializable):
        kind: ClassVar[str] = "count"
        start: int

    monkeypatch.setattr(TASK_KINDS, "_entries", dict(TASK_KINDS))

    @makes(Count)
    def count(worker: LoadedSweep, task: Count) -> dict[str, Any]:
        return {"captions": len(worker.captions) - task.start}

    assert evaluator.run({"kind": "count", "start": 4}) == {"captions": 20}
    with pytest.raises(ValueError, match="not a task of kind 'count'"):
        evaluator.run({"kind": "count"})


def test_memory_that_runs_out_halves_the_batch_once(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, sizes = CancellableEngine.step, []

    def step(self: CancellableEngine, batch: Batch) -> Any:
        sizes.append(batch.size)
        if batch.size > limit:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return real(self, batch)

    monkeypatch.setattr(CancellableEngine, "step", step)
    limit = 2
    answer = evaluator.make(QualityShard(CONFIG, 16, 20, 1, 4))
    assert sizes[0] == 4
    assert max(sizes[1:]) == 2
    assert set(read_shard(evaluator.storage, answer["name"])[0].column("batch").to_pylist()) == {2}
    limit = 0
    with pytest.raises(OutOfMemory, match="at batch 2"):
        evaluator.make(QualityShard(CONFIG, 20, 24, 1, 4))
    sizes.clear()
    with pytest.raises(OutOfMemory, match="at batch 2"):
        evaluator.make(TimingSession((VANILLA, CONFIG), 20, 24, (2,), 1))
    assert sizes == [2]  # another batch would be another measurement
    with pytest.raises(OutOfMemory, match="at batch 1"):
        evaluator.make(QualityShard(CONFIG, 20, 21, 1, 1))


def test_reading_and_drawing_pictures_halve_as_well(
    evaluator: Evaluator,
    shards: list[QualityShard],
    weights: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    target = evaluator.models.target
    real, sizes = type(target).decode, []

    def decode(self: Any, tokens: torch.Tensor) -> torch.Tensor:
        sizes.append(len(tokens))
        if len(tokens) > limit:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return real(self, tokens)

    other = Evaluator(spec(tmp_path, weights))
    monkeypatch.setattr(type(target), "decode", decode)
    limit = 4
    answer = other.make(shards[0])
    assert sizes == [8, 4, 4]
    columns = ["tokens", "score.clip_score", "features.scenes"]
    halved, whole = (read_shard(e.storage, answer["name"], columns)[0] for e in (other, evaluator))
    assert torch.equal(tokens_of(halved), tokens_of(whole))
    torch.testing.assert_close(
        features_of(halved, "scenes"), features_of(whole, "scenes"), rtol=0, atol=1e-2
    )
    sizes.clear()
    task = MeasureTask(CONFIG, (answer["name"],), (), (), ("clip_score",))
    pictures = other.make(task)["pictures"]
    assert sizes == [8, 4, 4]
    assert Image.open(tmp_path / pictures[0]).size == (4 * 48 + 6, 2 * 48 + 2)
    sizes.clear()
    limit = 0
    with pytest.raises(OutOfMemory, match="at 1 images: CUDA out of memory"):
        other.make(shards[1])
    assert sizes == [4, 2, 1], "what fitted is tried first"


def test_a_shard_stops_before_its_next_pass_when_it_is_called_off(
    built_in: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = QualityShard(VANILLA, 0, 24, 1, 8)
    begun, may_go_on = threading.Semaphore(0), threading.Semaphore(0)
    outcome: list[BaseException] = []
    step = CancellableEngine.step

    def held_step(engine: CancellableEngine, batch: Batch) -> Any:
        begun.release()
        assert may_go_on.acquire(timeout=HANG_S)
        return step(engine, batch)

    def work() -> None:
        try:
            built_in.run({"kind": "quality", **shard.to_mapping()})
        except Cancelled as error:
            outcome.append(error)

    monkeypatch.setattr(CancellableEngine, "step", held_step)
    thread = threading.Thread(target=work)
    thread.start()
    assert begun.acquire(timeout=HANG_S)
    # another task's: not meant
    built_in.cancel({"kind": "quality", **replace(shard, stop=2).to_mapping()})
    may_go_on.release()
    assert begun.acquire(timeout=HANG_S), "the next pass"
    built_in.cancel({"kind": "quality", **shard.to_mapping()})
    may_go_on.release()
    thread.join(HANG_S)
    assert outcome
    monkeypatch.undo()
    assert not built_in.storage.exists(shard.name(built_in.experiment))
    assert built_in.run({"kind": "quality", **replace(shard, stop=2).to_mapping()})["ran"] is True


def test_other_errors_pass_on(evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch) -> None:
    def step(self: CancellableEngine, batch: Batch) -> Any:
        raise DecodingError("logits are not finite")

    monkeypatch.setattr(CancellableEngine, "step", step)
    with pytest.raises(DecodingError, match="not finite"):
        evaluator.make(QualityShard(CONFIG, 20, 24, 1, 4))


def test_settings_are_predicted_once(evaluator: Evaluator, home: Path) -> None:
    exact = replace(CONFIG, acceptance=EXACT)
    relaxed = replace(CONFIG, acceptance=CONFIG.acceptance, policy=Chain(2))
    configs, params = (VANILLA, exact, CONFIG, relaxed), ("null", "{}", '{"a": 1}', '{"a": 2}')
    task = PredictTask(configs, params, captions=4, batch=4)
    assert evaluator.run({"kind": "predict", **task.to_mapping()})["ran"]
    table, metadata = read_shard(evaluator.storage, PREDICTIONS, kind="predict")
    assert (metadata["experiment"], metadata["captions"]) == (evaluator.experiment.digest(), 4)
    rows = table.to_pylist()
    assert [row["digest"] for row in rows] == [config.digest() for config in task.configs]
    assert [row["params"] for row in rows] == list(task.params)
    assert [DecodingConfig.from_mapping(json.loads(row["config"])) for row in rows] == list(
        task.configs
    )
    lengths = [row["mean_accepted_length"] for row in rows]
    assert 1 == lengths[0] < lengths[1] < lengths[2]
    assert [row["excess"] > 0 for row in rows] == [False, False, True, True]
    assert rows[2]["mean_accepted_length_error"] > 0
    content = (home / PREDICTIONS).read_bytes()
    assert not evaluator.make(task)["ran"]
    (home / PREDICTIONS).unlink()
    evaluator.make(task)
    again = read_shard(evaluator.storage, PREDICTIONS)[0]
    assert again.equals(table), "the same predictions when it is made again"
    (home / PREDICTIONS).write_bytes(content)


def test_few_engines_are_kept(evaluator: Evaluator) -> None:
    lengths = [replace(CONFIG, policy=Chain(length=length)) for length in range(1, 9)]
    engines = [evaluator.engines.get(config) for config in lengths]
    assert evaluator.engines.get(lengths[-1]) is engines[-1]
    assert evaluator.engines.get(lengths[0]) is not engines[0]


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"models": folder_entry(Path("no/such")).to_mapping()}, WeightsError, "no such file"),
        ({"device": "mps"}, ValueError, "use cpu, cuda"),
        ({"metrics": ("fidd",)}, ValueError, "did you mean 'fid'"),
        ({"captions": {"source": "no.txt"}}, ValueError, "no such file"),
    ],
)
def test_a_wrong_start_is_told(
    tmp_path: Path, changes: dict[str, Any], kind: type[ValueError], words: str
) -> None:
    captions = {"source": "scenes", "count": 2, "seed": 1}
    fields: dict[str, Any] = {"store": str(tmp_path), "device": "cpu", "captions": captions}
    with pytest.raises(kind, match=words):
        Evaluator(WorkerSpec(**fields | changes))


def test_captions_that_the_target_cannot_read_are_told(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("a red circle\na red zebra\n")
    with pytest.raises(ValueError, match="zebra"):
        Evaluator(
            WorkerSpec(
                store=str(tmp_path), device="cpu", captions={"source": str(tmp_path / "mine.txt")}
            )
        )
