"""The state of a sweep, from its events."""

from __future__ import annotations

from orchestrator.store import events
from orchestrator.store.progress import SweepProgress
from tests.fakes.sweep_events import OBJECTIVES, after, failed, finished, shard, started


def test_events_are_counted() -> None:
    workers = events.Workers(3, note="worker-1 is replaced")
    shards = [shard(0), shard(1, 4), shard(0, 3, "timing")]
    progress = after(started(0), started(1), started(2), *shards, finished(0), failed(1), workers)
    assert (progress.done, progress.failed, progress.workers) == (2, 1, 3)
    assert progress.images == {0: 8, 1: 4}
    assert {number: trial.name for number, trial in progress.running.items()} == {2: "chain 2"}
    assert progress.note == "worker-1 is replaced"
    progress.update(events.Workers(0, note="no worker is running"))
    assert (progress.workers, progress.note) == (0, "no worker is running")
    progress.update(events.Workers(2))
    assert (progress.workers, progress.note) == (2, "")


def test_a_finished_trial_ends_the_note_before_it() -> None:
    note = events.Note(note="worker-1 has run a shard for 62 s; another worker runs it too")
    progress = after(note, finished(0, new=False))
    assert progress.note == note.note, "an earlier launch finished that trial"
    progress.update(finished(1))
    assert progress.note == ""


def test_a_second_cluster_counts_no_trial_twice() -> None:
    """After another `launch` the driver emits the finished trials again."""
    launch = events.Launch()
    progress = SweepProgress(3)
    for event in (
        launch,
        OBJECTIVES,
        started(0),
        shard(0),
        finished(0),
        started(1),
        launch,
        finished(0, new=False),
    ):
        progress.update(event)
    assert (progress.done, progress.images, progress.running) == (1, {0: 8}, {})
    assert progress.candidates.keys() == {0}
