"""ray_cluster.yaml and docs/cluster/ray_gcp.yaml against Ray's own schema, as `ray up` reads them, and the
on-prem form that the comments of the first give; the images that nodes get.
"""

from __future__ import annotations

import json
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


GCP = FILE.parent / "docs" / "cluster" / "ray_gcp.yaml"


# by the names of the images, as `aws ec2 describe-images --image-ids` prints them
UBUNTU = {"ami-028357be7d5b15c53": "24.04"}


def python_of(release: str) -> tuple[int, int]:
    """The Python of an Ubuntu release."""
    return {"18.04": (3, 6), "20.04": (3, 8), "22.04": (3, 10), "24.04": (3, 12)}[release]


def images(config: dict[str, Any]) -> dict[str, str]:
    """The image of each type of node on AWS, as `ray up` resolves it: Ray's own where none is
    named.
    """
    pytest.importorskip("boto3")
    from ray.autoscaler._private.aws.config import _check_ami
    from ray.autoscaler._private.util import prepare_config

    prepared = prepare_config(config)
    _check_ami(prepared)  # type: ignore[no-untyped-call]
    return {
        name: kind["node_config"]["ImageId"]
        for name, kind in prepared["available_node_types"].items()
    }


def test_nodes_on_aws_have_an_image_whose_python_runs_the_project() -> None:
    from ray.autoscaler._private.aws.config import DEFAULT_AMI

    found = images(cloud())
    assert found.keys() == {"head", "gpu"}
    (image,) = set(found.values())
    assert re.fullmatch("ami-[0-9a-f]{17}", image)
    assert image not in DEFAULT_AMI.values(), "Ray's own is Ubuntu 18.04"
    assert python_of(UBUNTU[image]) >= (3, 11)
    assert f"(Ubuntu {UBUNTU[image]})" in FILE.read_text()
    without = cloud()
    for kind in without["available_node_types"].values():
        del kind["node_config"]["ImageId"]
    assert set(images(without).values()) == {DEFAULT_AMI["us-east-1"]}, "it would have been seen"


def test_gpu_nodes_may_write_to_buckets_and_start_no_machines() -> None:
    (name,) = cloud()["available_node_types"]["gpu"]["node_config"]["IamInstanceProfile"].values()
    commands = re.findall(r"^#   (aws iam .*)$", FILE.read_text(), flags=re.M)
    policies = [
        command for command in commands if f"attach-role-policy --role-name {name} " in command
    ]
    assert [command.rpartition("/")[2] for command in policies] == ["AmazonS3FullAccess"]
    documents = [json.loads(found) for found in re.findall("'(.*)'", "\n".join(commands))]
    (passed,) = [
        statement["Resource"]
        for document in documents
        for statement in document["Statement"]
        if statement["Action"] == "iam:PassRole"
    ]
    assert passed.endswith(f":role/{name}")
    gcp = yaml.safe_load(GCP.read_text())["available_node_types"]["gpu"]["node_config"]
    (scope,) = gcp["serviceAccounts"][0]["scopes"]
    assert scope.endswith("/devstorage.read_write")


def test_the_cluster_on_google_cloud_is_valid_and_its_images_run_the_project() -> None:
    config = yaml.safe_load(GCP.read_text())
    assert_valid(config)
    shared = cloud()
    for key in ("setup_commands", "file_mounts", "rsync_exclude", "worker_start_ray_commands"):
        assert config[key] == shared[key]
    for kind in config["available_node_types"].values():
        (disk,) = kind["node_config"]["disks"]
        release = re.search(r"-(\d\d)(\d\d)-", disk["initializeParams"]["sourceImage"])
        assert release
        assert python_of(f"{release[1]}.{release[2]}") >= (3, 11)
    (account,) = config["available_node_types"]["gpu"]["node_config"]["serviceAccounts"]
    assert config["provider"]["project_id"] in account["email"]
