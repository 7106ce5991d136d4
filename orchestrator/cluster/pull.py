"""Fetches files of the Hugging Face Hub on every node of a Ray cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from orchestrator.cluster.cluster import connected
from orchestrator.cluster.placement import Slots


@dataclass(frozen=True, slots=True)
class Pulled:
    """A file of the Hub on a node."""

    node: str
    reference: str
    path: str = ""  # of the file on the node
    problem: str = ""  # why it was not fetched


def pull_on_nodes(address: str, references: Sequence[str]) -> Iterator[Pulled]:
    """Fetch all files on all nodes at once; yields each when it is done.

    Raises:
        PoolError, ValueError: no cluster at the address.
    """
    with connected(address, Slots(1, cpus=0.0, gpus=0.0), cores=1):
        waiting = {}
        for node in ray.nodes():  # type: ignore[no-untyped-call]
            if node["Alive"]:
                for reference in references:
                    waiting[fetch(node, reference)] = (node["NodeManagerAddress"], reference)
        while waiting:
            (done,), _ = ray.wait(list(waiting), num_returns=1)
            node, reference = waiting.pop(done)
            try:
                path, problem = ray.get(done)
            except ray.exceptions.RayError as error:
                path = ""
                problem = (
                    f"the node was lost, or cannot import this project ({type(error).__name__})"
                )
            yield Pulled(node, reference, path, problem)


def fetch(node: dict[str, str], reference: str) -> ray.ObjectRef[tuple[str, str]]:
    """Start to fetch a file on a node: its path, and what went wrong."""
    pinned = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
    task = ray.remote(_pull).options(num_cpus=0, max_retries=0, scheduling_strategy=pinned)
    started: ray.ObjectRef[tuple[str, str]] = task.remote(reference)
    return started


def _pull(reference: str) -> tuple[str, str]:
    from workers.loading.hub import HubFile

    try:
        return str(HubFile.parse(reference).pull()), ""
    except ValueError as error:
        return "", str(error)
    except Exception as error:  # whatever it is, the user sees it with the node and the reference
        return "", f"{type(error).__name__}: {error}"
