"""ray_cluster.yaml against Ray's own schema, as `ray up` reads it, and the on-prem form that its
comments give.
"""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

FILE = Path(__file__).parents[1] / "ray_cluster.yaml"
CLOUD_ONLY = (
    "max_workers",
    "upscaling_speed",
    "idle_timeout_minutes",
    "available_node_types",
    "head_node_type",
)


def assert_valid(config: dict[str, Any]) -> None:
    """The checks that `ray up` makes before it contacts any machine. They are private to Ray's
    pinned version.
    """
    from ray.autoscaler._private.util import prepare_config, validate_config

    validate_config(prepare_config(config))


def cloud() -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load(FILE.read_text())
    return config


def on_prem() -> dict[str, Any]:
    """The file with its commented section in place of the cloud's, as its comments say."""
    block = FILE.read_text().partition("Machines of your own.")[2]
    lines = [line[4:] for line in block.splitlines() if re.match(r"#   \S| {0}#     \s*\S", line)]
    section = yaml.safe_load(
        "\n".join(line for line in lines if line[:1].isalpha() or line.startswith("  "))
    )
    return {key: value for key, value in cloud().items() if key not in CLOUD_ONLY} | dict(section)


def test_the_cloud_cluster_is_valid() -> None:
    assert_valid(cloud())


def test_the_cloud_cluster_with_the_image_is_valid() -> None:
    line = re.search(r"^#   (docker: .*)$", FILE.read_text(), flags=re.M)
    assert line
    config = {
        key: value for key, value in cloud().items() if key != "setup_commands"
    } | yaml.safe_load(line[1])
    assert config["docker"]["image"].endswith(f"/specfrontier:{version('specfrontier')}")
    assert_valid(config)


def test_the_on_prem_cluster_is_valid() -> None:
    config = on_prem()
    assert config["provider"]["type"] == "local"
    assert {"head_ip", "worker_ips"} <= config["provider"].keys()
    assert_valid(config)


@pytest.mark.parametrize(
    ("fault", "complaint"),
    [
        ({"max_wrokers": 3}, "max_wrokers"),
        ({"max_workers": -1}, "-1"),
        ({"head_node_type": "none"}, "none|node_type"),
    ],
)
def test_a_fault_is_found(fault: dict[str, Any], complaint: str) -> None:
    with pytest.raises(Exception, match=complaint):
        assert_valid(cloud() | fault)


def test_every_node_runs_the_pinned_project() -> None:
    config = cloud()
    assert any("constraints.txt" in command for command in config["setup_commands"])
    assert all(
        "stop" in config[key][0] for key in ("head_start_ray_commands", "worker_start_ray_commands")
    )
