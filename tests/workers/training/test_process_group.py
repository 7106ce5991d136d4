"""A group in earnest: two processes that torch.distributed joins train one drafter, and come to what one comes to."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.fakes.tiny_models import captions_file, tiny_folder
from workers.data.captions import read_captions
from workers.loading.models_yaml import folder_entry
from workers.training.eagle import IMAGES, JOURNAL, WEIGHTS, DrafterJob, EagleRecipe
from workers.training.process_group import ProcessGroup

ROOT = Path(__file__).parents[3]
RECIPE = EagleRecipe(batch=4, steps=30, rate=2e-3, save_every=10)
MEMBER = """
import sys
from pathlib import Path
import torch, torch.distributed as dist
from tests.workers.training.test_process_group import job
from workers.training.process_group import ProcessGroup

torch.set_num_threads(1)
dist.init_process_group("gloo")
group = ProcessGroup.current()
job(Path(sys.argv[1]), sys.argv[2]).run(torch.device("cpu"), group=group, log=lambda line: None)
print(group.rank, group.size)
"""


def job(folder: Path, out: str) -> DrafterJob:
    captions = tuple(read_captions(folder / "captions.txt"))
    models = folder_entry(folder / "weights")
    return DrafterJob(entry=models, captions=captions, out=folder / out, recipe=RECIPE)


def curve(folder: Path, key: str) -> list[float]:
    entries = map(json.loads, (folder / JOURNAL).read_text("utf-8").splitlines())
    return [entry[key] for entry in entries if key in entry]


def test_alone_there_is_nothing_to_average() -> None:
    group, tensor = ProcessGroup.current(), torch.ones(3)
    group.average([tensor])
    group.barrier()
    assert group == ProcessGroup()
    assert (group.is_main, group.share(5), tensor.tolist()) == (True, slice(0, 5), [1, 1, 1])


@pytest.mark.slow
def test_two_processes_come_to_the_losses_of_one(tmp_path: Path) -> None:
    tiny_folder(tmp_path / "weights")
    captions_file(tmp_path / "captions.txt", 140)
    job(tmp_path, "one").run(torch.device("cpu"), log=lambda line: None)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    joined = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    path = os.pathsep.join(map(str, (ROOT, ROOT / "tests" / "reference")))
    members = [
        subprocess.Popen(
            [sys.executable, "-c", MEMBER, str(tmp_path), "two"],
            env={**os.environ, **joined, "RANK": str(rank), "PYTHONPATH": path},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    said = [member.communicate(timeout=110) for member in members]
    assert [out.strip() for out, _ in said] == ["0 2", "1 2"], said
    one, two = tmp_path / "one", tmp_path / "two"
    assert sorted(file.name for file in (one / IMAGES).iterdir()) == sorted(f.name for f in (two / IMAGES).iterdir())
    assert len(curve(two, "loss")) == 30
    assert curve(two, "loss") == pytest.approx(curve(one, "loss"), abs=1e-4)
    assert curve(two, "top-3") == pytest.approx(curve(one, "top-3"), abs=1e-4)
    assert curve(one, "loss")[0] - curve(one, "loss")[-1] > 0.05, "there is something to get wrong"
    assert (two / WEIGHTS).exists()
