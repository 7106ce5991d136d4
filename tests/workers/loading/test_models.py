"""What models support, read from their headers alone."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from search_spaces.temperatures import CONSTANT_TEMPERATURE, DynamicTemperature, EntropyTemperature
from workers.loading.models import Capabilities
from workers.loading.models_yaml import folder_entry, load_on_meta
from workers.models.target import Target


def test_no_image_is_decoded_for_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the meta device that would import torch's compiler, which takes longer than all other
    checks of a launch.
    """
    models = load_on_meta(folder_entry())
    monkeypatch.delattr(Target, "decode")
    assert Capabilities.of(models).image_size == 48


@pytest.mark.parametrize("dynamic", [CONSTANT_TEMPERATURE, EntropyTemperature(scale=2.0)])
def test_capabilities_are_plain_data_and_back(dynamic: DynamicTemperature) -> None:
    """As a worker sends them to the driver."""
    found = Capabilities.of(load_on_meta(folder_entry()))
    found = replace(found, sampling=replace(found.sampling, dynamic_temperature=dynamic))
    assert Capabilities.from_mapping(json.loads(json.dumps(found.to_mapping()))) == found
