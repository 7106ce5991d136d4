"""The papers' tables as sweeps: every one loads, and each listed setting is what its published row
says.

What a row says is read here from the row's own words, by the papers' conventions, and not from the
sweep's file.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest

from orchestrator.shown.papers import Published, published, rows_of, tables
from search_spaces.acceptance import EXACT, AcceptanceRule
from search_spaces.drafters import Eagle, Jacobi, JacobiRows, NoDrafter
from search_spaces.neighbourhoods import Additive, Multiplicative
from search_spaces.params import ConfigError
from search_spaces.rules.grouped import Grouped
from search_spaces.schedules import Exponential
from search_spaces.sweep import SweepConfig, ready_spaces
from search_spaces.trees import Adjacency, Branching, Chain, Dynamic, NoTree, Static, TreePolicy
from search_spaces.trial import DecodingConfig, Sampling
from search_spaces.verification import JointVerification, UniformSkipping

NAMES = [name for name in ready_spaces() if name.startswith("papers/")]
#: Codes of the codebook and tokens of an image, by the entry of models.yaml.
TARGETS: dict[str, tuple[int, int]] = {
    "llamagen-xl-stage1": (16384, 256),
    "llamagen-xl-stage2": (16384, 1024),
    "llamagen-3b-c2i": (16384, 576),
    "llamagen-l-c2i": (16384, 576),
    "llamagen-xl-c2i": (16384, 576),
    "anole-7b": (8192, 1024),
    "lumina-mgpt-7b-768": (8192, 2304),
    "janus-pro-7b": (16384, 576),
    "emu3-gen": (32768, 8100),
}
MODELS = {
    "LlamaGen-XL Stage I": "llamagen-xl-stage1",
    "LlamaGen-XL Stage II": "llamagen-xl-stage2",
    "LlamaGen-XL": "llamagen-xl-stage1",
    "LlamaGen-3B": "llamagen-3b-c2i",
    'LlamaGen-L (printed "L 775M")': "llamagen-l-c2i",
    "LlamaGen-XL (775M)": "llamagen-xl-c2i",
    "Anole": "anole-7b",
    "Lumina-mGPT-7B-768": "lumina-mgpt-7b-768",
    "Lumina-mGPT": "lumina-mgpt-7b-768",
    "not stated": "lumina-mgpt-7b-768",
    "LlamaGen": "llamagen-xl-stage2",
    "Janus-Pro-7B": "janus-pro-7b",
    "Emu3": "emu3-gen",
}
# training-free methods, whose windows are counted with the last token
NEWER = ("SCD", "SJD-PAC", "SJD-SV", "PJD")
OWN_SAMPLING = {  # of the models, where the newer papers and their code state none
    "llamagen-xl-stage2": Sampling(top_k=1000, cfg=7.5),
    "janus-pro-7b": Sampling(top_k=1000, cfg=5.0),
    "emu3-gen": Sampling(top_k=2048, cfg=3.0),
}
EAGLE2 = Dynamic(depth=5, width=10, nodes=58)
STATIC = {"26": Static(name="eagle1_26"), "58": Static(name="lanternpp_58")}
FIXED = {
    "fixed init depth=1": (2, None),
    "fixed init k=25": (None, 25),
    "fixed init depth=1,k=25": (2, 25),
}


@pytest.fixture(scope="module")
def sweeps() -> dict[str, SweepConfig]:
    return {name: SweepConfig.read(name) for name in NAMES}


def parameters(row: Published) -> dict[str, str]:
    """The setting's `key=value` parts; omits words without a value."""
    parts = (part.partition("=") for part in row.setting.split(";"))
    return {key.strip(): value.strip() for key, sign, value in parts if sign}


def sampling(row: Published) -> Sampling:
    """Guidance and top-k of the row's paper, temperature of the row (1 where none is printed)."""
    temperature = 1.0 if row.temperature is None else row.temperature
    if row.paper in ("LANTERN", "VVS") and row.model.startswith("LlamaGen"):
        return Sampling(temperature, top_k=1000, cfg=7.5)
    if row.paper in NEWER and MODELS[row.model] in OWN_SAMPLING:
        return OWN_SAMPLING[MODELS[row.model]]
    return Sampling(temperature, top_k=2000, cfg=4.0 if row.paper == "PEANUT" else 3.0)


def adjacency(row: Published) -> Adjacency:
    """Open ranges; a depth of the paper is one less than its levels. Without printed ranges, those
    for LlamaGen.
    """
    words = (
        row.setting if "l_k=" in row.setting else "l_d=1;l_k=10;depth in (0,10);k in (3,40);beta=1"
    )
    (shallow, deep), (narrow, wide) = (
        (int(a), int(b)) for a, b in re.findall(r"in \((\d+),(\d+)\)", words)
    )
    found = {key: int(value) for key, value in re.findall(r"(l_d|l_k|beta)=(\d+)", words)}
    depth, width = FIXED.get(row.setting, (None, None))
    return Adjacency(
        initialisation="tokenflock" if row.method == "TokenFlock" else "horizontal",
        depth_step=found["l_d"],
        width_step=found["l_k"],
        beta=float(found["beta"]),
        depth_range=(shallow + 2, deep),
        width_range=(narrow + 1, wide - 1),
        fixed_depth=depth,
        fixed_width=width,
    )


def neighbourhood(row: Published) -> Additive:
    given = parameters(row)
    distance, near = given.get("distance", "TVD").split()[0], given.get("neighbours", "l2")
    # of VVS' script; of table 9, and of the figures of ADT-Tree
    unstated = "0.2" if row.paper == "VVS" else "0.4"
    k, delta = given.get("k", "1000"), given.get("delta", unstated)
    return Additive(int(k), float(delta), divergence=distance.lower(), proximity=near)  # type: ignore[arg-type]


def static(row: Published) -> Static:
    """By the number of nodes that the row names; else the original tree, but for table 1 of
    LANTERN++ (appendix B).
    """
    unnamed = (
        "58" if row.paper == "SJD-PAC" or (row.paper, row.table) == ("LANTERN++", "1") else "26"
    )
    return STATIC[parameters(row).get("N", unnamed).split()[0]]


def windowed(row: Published) -> tuple[Jacobi, TreePolicy, AcceptanceRule] | None:
    """Drafter, tree and rule of a method that drafts by Jacobi windows; None: of another method.

    L is a window of L slots, the last token's among them; c a lag that on Lumina counts the token
    that starts a row. SJD-PAC's tree has K^(D-1) leaves and (K^D - 1) / (K - 1) nodes, the root
    among them: 16 and 21.
    """
    given = parameters(row)
    window, random = int(given.get("L", "16")), Jacobi("random")
    chain = Chain(length=window - 1)
    if row.method == "SJD-PAC":
        branching = Branching(length=3 + window - 21 - 1, width=4, depth=2)
        return Jacobi(redraw="fresh" if "PD only" in row.setting else "maximal"), branching, EXACT
    if row.method == "GSD":
        group = int(given.get("G", "14"))
        return (
            random,
            chain,
            AcceptanceRule(Grouped(below=group // 2, above=group - group // 2 - 1)),
        )
    if row.method == "PJD":
        lag = int(given["c"]) - row.model.startswith("Lumina")
        rows = JacobiRows("random", "reuse", 0.5, "published", lag=lag, lower="redrawn")
        return rows, Chain(length=7), EXACT
    found = {
        "SJD": (random, EXACT),
        "SJD-SV": (random, AcceptanceRule(verification=JointVerification(0.8))),
        "SCD-MC": (Jacobi("random", "maximal", probs="published"), EXACT),
        "SCD-GS": (Jacobi("random", "coupled"), EXACT),
    }.get(row.method)
    return found and (found[0], chain, found[1])


def expected(row: Published) -> DecodingConfig:
    method, given, baseline = row.method, parameters(row), sampling(row)

    def drafted(tree: TreePolicy, rule: AcceptanceRule = EXACT) -> DecodingConfig:
        return DecodingConfig(Eagle(), tree, rule, baseline)

    if method == "Vanilla AR":
        return DecodingConfig(NoDrafter(), NoTree(), EXACT, baseline)
    if found := windowed(row):
        return DecodingConfig(*found, baseline)
    if method == "Cool-SD":
        return drafted(
            static(row), AcceptanceRule(schedule=Exponential(budget=float(given["delta"]), nu=0.1))
        )
    if method == "LANTERN++":
        # SJD-PAC states neither: its row has the speeds of this one
        k, bound = int(given.get("k", "10")), float(given.get("lambda", "2"))
        return drafted(static(row), AcceptanceRule(Multiplicative(k, bound)))
    if method in ("VVS", "VVS-U"):
        return drafted(EAGLE2, AcceptanceRule(neighbourhood(row), verification=UniformSkipping(5)))
    if method.startswith("LANTERN"):
        return drafted(
            static(row) if "static" in method else EAGLE2, AcceptanceRule(neighbourhood(row))
        )
    if method.startswith("EAGLE"):
        return drafted(EAGLE2 if method == "EAGLE-2" else static(row))
    assert method.startswith(("ADT-Tree", "PEANUT", "TokenFlock")), method
    if method.endswith("+LANTERN"):
        (delta, k) = re.findall(r"delta=([\d.]+) k=(\d+)", row.setting)[0]
        return drafted(adjacency(row), AcceptanceRule(Additive(int(k), float(delta))))
    return drafted(adjacency(row))


def test_every_table_is_there() -> None:
    """27 results tables; LANTERN's table 5 has no figures. Some are several sweeps: one a model, or
    one a size. Tables of newer methods, which few sources number, are one sweep a model and set of
    captions.
    """
    pac = ("lumina-coco", "lumina-parti", "emu3-coco", "emu3-parti", "ablation")
    files = {re.sub(r"(table\d+).*", r"\1", name) for name in NAMES}
    assert files == {
        *(f"papers/lantern-table{n}" for n in (1, 2, 3, 4, 6, 7, 8, 9, 10, 11)),
        *(f"papers/lantern-pp-table{n}" for n in (1, 2, 3, 4, 5)),
        *(f"papers/cool-sd-table{n}" for n in (1, 2)),
        *(f"papers/{paper}-table{n}" for paper in ("adt-tree", "peanut") for n in (1, 2, 3, 4, 5)),
        *(f"papers/scd-{model}" for model in ("lumina", "janus")),
        *(f"papers/sjd-pac-{table}" for table in pac),
        *(
            f"papers/sjd-sv-{table}"
            for table in ("lumina-coco", "lumina-parti", "emu3", "llamagen")
        ),
        "papers/pjd-table1",
        *(f"papers/vvs-{table}" for table in ("stage1", "stage2", "ablation")),
    }
    assert sorted(tables()) == NAMES


def test_rows_that_no_setting_stands_for() -> None:
    left = Counter(
        (row.paper, row.method) for row in published() if not row.sweep and row.source == "paper"
    )
    assert left == {
        ("LANTERN", "random replacement"): 3,
        ("LANTERN++", "EAGLE-1"): 1,
        ("LANTERN++", "EAGLE-2"): 1,
    }
    newer = Counter(row.paper for row in published() if not row.sweep and row.source != "paper")
    assert newer == {
        "SCD": 2,
        "SJD-PAC": 4,
        "SJD-SV": 3,
        "SJD++": 1,
        "SJD-PV": 1,
        "PathRelax": 3,
        "CASCADE": 1,
        "Hawk": 4,
        "SSD": 15,
        "MuLo-SD": 7,
        "VVS": 5,
    }


@pytest.mark.parametrize("name", NAMES)
def test_each_setting_is_what_its_row_says(name: str, sweeps: dict[str, SweepConfig]) -> None:
    sweep = sweeps[name]
    settings = {entry.label: entry.config for entry in sweep.enqueue}
    rows = [row for row in published() if row.sweep == name]
    assert rows
    for row in rows:
        assert settings[row.label] == expected(row), row.label
        assert MODELS[row.model] == sweep.models.name
        assert set(row.metrics) <= set(sweep.metrics or ()), row.label
        if row.images is not None:
            assert row.images == sweep.captions.count * sweep.quality.samples
        if "num_captions" in parameters(row):
            assert int(parameters(row)["num_captions"]) == sweep.timing.images
    assert set(settings) - {row.label for row in rows} <= {"vanilla"}, (
        "a setting that no row stands for"
    )


@pytest.mark.parametrize("name", NAMES)
def test_each_is_ready_to_run(name: str, sweeps: dict[str, SweepConfig]) -> None:
    sweep = sweeps[name]
    assert sweep.name == name.removeprefix("papers/")
    table = r"(table [\dIV]+|main table|ablation table|table of models)"
    assert re.match(
        rf"(LANTERN(\+\+)?|Cool-SD|ADT-Tree|PEANUT|VVS|{'|'.join(NEWER)}), {table}[:,]", sweep.about
    )
    assert SweepConfig.parse(sweep.to_yaml(), "again") == sweep
    assert sweep.enqueue[0].label == "vanilla"
    assert sweep.enqueue[0].config == DecodingConfig(sampling=sweep.sampling)
    assert sweep.budget.trials == len(sweep.enqueue)
    assert not sweep.space.source, "nothing is searched"
    assert {goal.metric for goal in sweep.objectives} <= set(sweep.metrics or ())
    assert len(sweep.objectives) == 2
    assert (sweep.timing.batch, sweep.timing.images <= sweep.captions.count) == (1, True)
    assert sweep.models.name is not None
    codes, tokens = TARGETS[sweep.models.name]
    for entry in sweep.enqueue:
        entry.config.check_model(codes, image_tokens=tokens, drafters={"eagle": None})
    assert (sweep.reference.source == "none") == (
        "fid" not in (sweep.metrics or ()) and not wants_images(sweep)
    )


def wants_images(sweep: SweepConfig) -> bool:
    """Precision and recall are against real images as well."""
    return {"precision", "recall"} <= set(sweep.metrics or ())


@pytest.mark.parametrize(
    ("prefix", "choose", "source"),
    [
        ("lantern-table2", "longest", "captions_val2014.json"),
        ("lantern-table6", "longest", "captions_val2017.json"),
        ("lantern-pp-table2", "longest", "captions_val2017.json"),
        ("cool-sd-", "seeded", "captions_val2017.json"),
        ("adt-tree-table1", "first", "captions_val2017.json"),
        ("peanut-table5", "seeded", "PartiPrompts.tsv"),
        ("lantern-pp-table1", "seeded", "classes"),
        ("pjd-table1", "seeded", "captions_val2017.json"),
        ("sjd-pac-emu3-parti", "seeded", "PartiPrompts.tsv"),
        ("vvs-", "seeded", "captions_val2017.json"),
    ],
)
def test_captions_are_the_papers(
    prefix: str, choose: str, source: str, sweeps: dict[str, SweepConfig]
) -> None:
    found = [sweep for name, sweep in sweeps.items() if name.startswith(f"papers/{prefix}")]
    assert found
    assert {(sweep.captions.choose, sweep.captions.source) for sweep in found} == {(choose, source)}


def test_greedy_settings_draw_each_caption_once(sweeps: dict[str, SweepConfig]) -> None:
    """More samples of a greedy setting would be copies of one image."""
    for sweep in sweeps.values():
        greedy = [
            entry
            for entry in sweep.enqueue
            if (entry.config.sampling or Sampling()).temperature == 0
        ]
        assert not greedy or sweep.quality.samples == 1, sweep.name


def test_what_the_paper_lost_is_said(sweeps: dict[str, SweepConfig]) -> None:
    for name, sweep in sweeps.items():
        assert ("the paper does not state nu, here 0.1" in sweep.about) == name.startswith(
            "papers/cool-sd"
        )


def test_a_wrong_paper_is_told_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'papers/lantern-table2'"):
        SweepConfig.read("papers/lantern-tabel2")


def test_rows_of_one_label_agree() -> None:
    """LANTERN's table 3 prints a row twice; nothing else shares a label."""
    shared = [
        rows
        for name in NAMES
        if len(rows := [r for r in published() if r.sweep == name]) > len(rows_of(name))
    ]
    (rows,) = shared
    twice = [row for row in rows if row.label == "LANTERN k=1000 delta=0.2 l2 TVD"]
    assert [dict(row.metrics) for row in twice[1:]] == [dict(twice[0].metrics)]


def entry(**keys: Any) -> str:
    return "name: x\nenqueue: [vanilla]\nmodels: " + str(keys) + "\n"


def test_models_by_their_entry() -> None:
    sweep = SweepConfig.parse(entry(name="llamagen-xl-stage1", file="models.yaml"), "f")
    assert (sweep.models.name, sweep.models.file) == ("llamagen-xl-stage1", "models.yaml")
    assert SweepConfig.parse(sweep.to_yaml(), "f") == sweep
    filled = SweepConfig.read("papers/lantern-table2", {"models.file": "models.yaml"})
    assert (filled.models.name, filled.models.file) == ("llamagen-xl-stage1", "models.yaml")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"weights": "runs/mine"},
            "f:3: models.weights: unknown key; known keys: file, name, device",
        ),
        ({"name": 3}, "f:3: models.name: must be a string, got 3"),
    ],
)
def test_models_that_cannot_be(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SweepConfig.parse(entry(**keys), "f")
    assert str(caught.value) == message
