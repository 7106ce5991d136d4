"""A Ray cluster on this machine that starts and stops nodes by itself, with Ray's own autoscaler
and its fake provider.

`ray.cluster_utils.AutoscalingCluster` does the same, but stops every other Ray process of the
machine first.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.fakes.ports import HOST, claim_port
from tests.fakes.real_sweeps import ray_folder
from tests.fakes.waiting import HANG_S

_HEAD_ID = "fffffffffffffffffffffffffffffffffffffffffffffffffff00000"
# "fake_multinode" is its own type, whose defaults are a file that Ray's wheels lack
_PROVIDER = "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider"
_NO_COMMANDS = (
    "initialization_commands",
    "setup_commands",
    "head_setup_commands",
    "worker_setup_commands",
    "head_start_ray_commands",
    "worker_start_ray_commands",
    "cluster_synced_files",
    "rsync_exclude",
    "rsync_filter",
)


@contextmanager
def autoscaling_cluster(
    node_types: Mapping[str, Mapping[str, Any]], idle_s: float
) -> Iterator[str]:
    """The address of a head without CPUs. A node that was idle for `idle_s` seconds is stopped."""
    with ray_folder() as folder:
        port = claim_port()
        path = folder / "autoscaling.json"
        path.write_text(json.dumps(_config(node_types, idle_s, f"{HOST}:{port}")))
        environment = os.environ | {
            "RAY_TMPDIR": str(folder),
            "RAY_FAKE_CLUSTER": "1",
            "RAY_enable_autoscaler_v2": "1",
            "RAY_CLOUD_INSTANCE_ID": _HEAD_ID,
            "RAY_OVERRIDE_NODE_ID_FOR_TESTING": _HEAD_ID,
            "AUTOSCALER_UPDATE_INTERVAL_S": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        command = [str(Path(sys.executable).parent / "ray"), "start", "--head", f"--port={port}"]
        command += [f"--node-ip-address={HOST}", "--num-cpus=0", "--include-dashboard=false"]
        command += [f"--autoscaling-config={path}", f"--object-store-memory={80 << 20}"]
        command += [f"--dashboard-agent-listen-port={claim_port()}"]
        started = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=HANG_S, check=False
        )
        assert started.returncode == 0, started.stdout + started.stderr
        yield f"{HOST}:{port}"


def _config(
    node_types: Mapping[str, Mapping[str, Any]], idle_s: float, address: str
) -> dict[str, Any]:
    head = {"ray.head.default": {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0}}
    provider = {
        "type": "external",
        "module": _PROVIDER,
        "use_node_id_as_ip": True,
        "disable_node_updaters": True,
    }
    provider |= {
        "disable_launch_config_check": True,
        "launch_multiple": True,
        "head_node_id": _HEAD_ID,
    }
    return {
        "cluster_name": "fake",
        "max_workers": sum(kind["max_workers"] for kind in node_types.values()),
        "provider": provider | {"gcs_address": address},
        "available_node_types": {
            **head,
            **{name: {"node_config": {}, **kind} for name, kind in node_types.items()},
        },
        "head_node_type": "ray.head.default",
        "upscaling_speed": 1.0,
        "idle_timeout_minutes": idle_s / 60,
        "auth": {},
        "file_mounts": {},
        "file_mounts_sync_continuously": False,
        **{name: [] for name in _NO_COMMANDS},
    }
