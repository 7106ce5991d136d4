"""How many images the timing sessions of a sweep take: as many as shapes need alone with vanilla,
and the front's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.instant import Numbers, plausible
from orchestrator.run.timing import decisive_configs, planned_sizes
from search_spaces.drafters import Jacobi
from search_spaces.sweep import SweepConfig
from search_spaces.trees import Chain
from search_spaces.trial import DecodingConfig
from tests.fakes.timed_launches import SPACE, TimedWorkers, launch
from workers.data.shards import digest

WINDOWS = [
    f"{{label: w{length}, drafter: jacobi, tree: {{policy: chain, length: {length}}}}}"
    for length in range(5, 15)
]
WIDE = "  drafter: eagle\n  tree: {policy: chain, length: {low: 3, high: 20}}\n"


def space(enqueued: int, trials: int, *, is_wide: bool = False) -> str:
    """A sweep with two shapes and some windows enqueued. is_wide: others are of many shapes."""
    head, tail = SPACE.replace("trials: 9", f"trials: {trials}").split("space:\n")
    entries = "".join(f"  - {window}\n" for window in WINDOWS[:enqueued])
    return f"{head}{entries}space:\n{WIDE if is_wide else tail}"


def all_on_front(config: DecodingConfig) -> dict[str, float]:
    """The cheaper the passes of a shape (see `session_rows`), the worse its images."""
    cost = int(digest(config.shape.key), 16) % 100
    return {"speedup": 1.0, "fid": 1.0 if config.is_vanilla else 200.0 - cost}


@pytest.mark.parametrize(
    ("enqueued", "sessions"),
    [(0, [1, 2, 2, 2, 2, 2]), (1, [2, 3, 2, 2, 2]), (2, [3, 3, 3, 2])],
    ids=["0", "1", "2"],
)
def test_each_enqueued_shape_pays_for_an_anchor(
    enqueued: int, sessions: list[int], tmp_path: Path
) -> None:
    """Also a single one. With none no image is left over, so no setting can be timed twice before
    the last session.
    """
    head, _ = SPACE.replace("PARALLEL", "1").split("  - {label: chain")
    entries, path = (
        "".join(f"  - {window}\n" for window in WINDOWS[:enqueued]),
        tmp_path / "shapes.yaml",
    )
    path.write_text(f"{head}{entries}space:\n{WIDE}")
    sweep = SweepConfig.read(path)
    vanilla = DecodingConfig(sampling=sweep.sampling)
    windows = [replace(vanilla, drafter=Jacobi(), policy=Chain(length)) for length in range(5, 10)]
    assert planned_sizes(sweep, [vanilla, *windows], front=1) == [*sessions, 2]


SIZES = {
    "few": (0, 9, False),
    "later": (0, 14, True),
    "enqueued": (6, 9, False),
    "many": (10, 24, True),
}
FRONTS: dict[str, Numbers] = {
    "all": all_on_front,
    "some": plausible,
    "one": lambda _: {"speedup": 1.0, "fid": 1.0},
}


@pytest.mark.parametrize(("enqueued", "trials", "is_wide"), SIZES.values(), ids=list(SIZES))
@pytest.mark.parametrize("numbers", FRONTS.values(), ids=list(FRONTS))
def test_as_many_images_are_timed_as_if_each_shape_were_timed_alone_and_the_front_once_more(
    enqueued: int, trials: int, is_wide: bool, numbers: Numbers, tmp_path: Path
) -> None:
    workers = TimedWorkers(numbers=numbers)
    timed = launch(tmp_path, workers, space(enqueued, trials, is_wide=is_wide))
    tasks = sorted(
        (t for t in workers.tasks if t.kind == "timing"),
        key=lambda task: int(task.payload["number"]),
    )
    sizes = {task.name: len(task.payload["configs"]) for task in tasks}
    own = {
        name: sizes[name]
        for payload in workers.measured_with().values()
        for name in payload["timing"]
    }
    configs = [record.config for record in timed.sweep.records if record.config]
    alone = 1 + 2 * len({config.shape for config in configs} - {configs[0].shape})
    assert len(sizes) == len(timed.sessions), "none is timed twice"
    assert max(sizes.values()) <= 10, "vanilla, eight others and an anchor"

    def once_more(names: Iterable[str]) -> int:
        front = len(decisive_configs(timed.sweep.priced(list(names))))
        return front + -(-front // 8)

    assert sum(own.values()) <= alone
    assert (
        alone - once_more(sizes)
        < sum(sizes.values())
        <= max(alone, sum(own.values()) + once_more(own))
    )
    assert sum(sizes.values()) > sum(own.values()), "the front is timed once more in any case"
    if numbers is all_on_front:
        sweep, front = (
            SweepConfig.read(tmp_path / "shapes.yaml"),
            len(decisive_configs(timed.sweep.priced(list(own)))),
        )
        assert planned_sizes(sweep, configs, front) == list(sizes.values()), (
            "what `doctor --plan` counts"
        )
