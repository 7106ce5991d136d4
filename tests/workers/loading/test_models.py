"""What models support, read from their headers alone."""

from __future__ import annotations

import pytest

from workers.loading.models import Capabilities
from workers.loading.models_yaml import folder_entry, load_on_meta
from workers.models.target import Target


def test_no_image_is_decoded_for_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the meta device that would import torch's compiler, which takes longer than all other checks of a launch."""
    models = load_on_meta(folder_entry())
    monkeypatch.delattr(Target, "decode")
    assert Capabilities.of(models).image_size == 48
