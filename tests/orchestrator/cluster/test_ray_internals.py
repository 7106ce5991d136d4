"""Ray's private names: each is there, and without one a check is left to Ray; the loopback is not
given up.
"""

from __future__ import annotations

import pytest
from ray import _raylet
from ray._private import grpc_utils, parameter, ray_constants, services, worker

from orchestrator.cluster import ray_internals
from orchestrator.cluster.cluster import requires_token, resolve_address
from orchestrator.cluster.ray_internals import MissingName, PrivateName
from tests.fakes.odd_servers import HTTP, odd_server


def missing_names() -> list[str]:
    """The private names that the installed version of Ray lacks."""
    missing = []
    for name in PrivateName:
        try:
            ray_internals._private(name)
        except MissingName:
            missing.append(str(name))
    return missing


def test_the_installed_version_of_ray_has_all_private_names() -> None:
    assert missing_names() == []


@pytest.fixture
def without_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Ray that lacks these names."""
    for module, attribute in (
        (_raylet, "Config"),
        (grpc_utils, "init_grpc_channel"),
        (parameter, "RayParams"),
        (ray_constants, "ENABLE_RAY_CLUSTER"),
        (services, "find_gcs_addresses"),
        (services, "find_node_ids"),
        (worker, "_global_node"),
        (worker, "_worker_logs_enabled"),
    ):
        monkeypatch.delattr(module, attribute)


def test_missing_names_are_named(without_names: None) -> None:
    assert missing_names() == [
        "ray._private.grpc_utils:init_grpc_channel",
        "ray._private.ray_constants:ENABLE_RAY_CLUSTER",
        "ray._raylet:Config.initialize",
        "ray._private.services:find_gcs_addresses",
        "ray._private.services:find_gcs_addresses.cache_clear",
        "ray._private.worker:_global_node",
        "ray._private.services:find_node_ids",
        "ray._private.parameter:RayParams",
        "ray._private.worker:_worker_logs_enabled",
    ]


def test_checks_are_left_to_ray_without_their_names(without_names: None) -> None:
    ray_internals.forget_authentication()
    ray_internals.hide_worker_logs()
    with ray_internals.without_services():
        assert not hasattr(parameter, "RayParams")
    assert ray_internals.dead_processes() == ray_internals.local_clusters() == set()
    with odd_server(HTTP) as server:
        assert not requires_token(resolve_address(server.address))
        assert not requires_token(resolve_address(f"ray://{server.address}"))
        assert server.requests == []


def test_private_names_have_their_values_again_after_a_start() -> None:
    before = parameter.RayParams, services.start_api_server, ray_constants.ENABLE_RAY_CLUSTER
    with ray_internals.on_loopback(), ray_internals.without_services():
        within = parameter.RayParams, services.start_api_server, ray_constants.ENABLE_RAY_CLUSTER
        assert within[2] is False
        assert all(one is not other for one, other in zip(before[:2], within[:2], strict=True))
    assert (
        parameter.RayParams,
        services.start_api_server,
        ray_constants.ENABLE_RAY_CLUSTER,
    ) == before


def test_a_cluster_that_others_could_reach_does_not_start(without_names: None) -> None:
    with (
        pytest.raises(MissingName, match=r"has no ray\._private\.ray_constants:ENABLE_RAY_CLUSTER"),
        ray_internals.on_loopback(),
    ):
        raise AssertionError("started")
