"""SimpleAR's codec: the lattice of its codes, images as its decoder makes them, and files that are
not its decoder.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.fakes.tiny_extended import LEVELS, Quantizer, decoder_module, write_decoder
from workers.loading.dry_run import Meter
from workers.models.checkpoint_files import WeightsError
from workers.models.families.simplear import (
    CODES,
    CosmosDecoder,
    SimpleAR,
    lattice,
    load_decoder,
)

CPU = torch.device("cpu")
META = torch.device("meta")
IDS = torch.randint(CODES, (2, 3, 5), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cosmos") / "decoder.jit"
    write_decoder(path)
    return path


def test_the_lattice_is_what_the_decoder_reads() -> None:
    points = lattice(LEVELS)
    assert len(points) == CODES == 64_000
    assert len(torch.unique(points, dim=0)) == CODES
    assert torch.equal(points[[0, 1, 8, -1]] * 4 + 4, torch.tensor([
        [0.0, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0], [7, 7, 7, 8, 8, 8],
    ]))  # fmt: skip
    read = Quantizer(LEVELS, torch.float32)(torch.arange(CODES).view(1, 1, 1, CODES))
    torch.testing.assert_close(points, read[0, :, 0, 0].T)
    # neighbours of a code differ by one step of one level
    distances = (points - points[20_000]).norm(dim=1)
    assert sorted(distances.tolist())[1] == pytest.approx(0.25)


def test_images_are_the_decoders_first_frame(decoder: Path) -> None:
    codec = load_decoder(decoder, CPU)
    images = codec.decode_ids(IDS)
    torch.testing.assert_close(images, decoder_module()(IDS[:, None])[:, :, 0])
    assert images.shape == (2, 3, 48, 80)
    assert 0.2 < float(images.abs().max()) <= 1
    again = [codec.decode_ids(IDS) for _ in range(3)]
    assert all(torch.equal(images, image) for image in again), "no run is optimised"


def test_the_decoder_keeps_the_files_type(tmp_path: Path) -> None:
    module = decoder_module(dtype=torch.bfloat16)
    write_decoder(tmp_path / "decoder.jit", module)
    codec = load_decoder(tmp_path / "decoder.jit", CPU)
    images = codec.decode_ids(IDS)
    assert images.dtype == torch.bfloat16
    assert torch.equal(images[:1], module(IDS[:1, None])[:, :, 0])


def test_a_dry_run_counts_the_decoders_own_program(decoder: Path) -> None:
    """On the meta device: what it allocates and multiplies on a CPU."""
    found = {}
    for device in (CPU, META):
        codec = load_decoder(decoder, device)
        with torch.no_grad(), Meter() as meter:
            codec.decode_ids(IDS.to(device))
        found[device.type] = (meter.peak, meter.take_work().flops)
    assert found["meta"][1] == found["cpu"][1] > 0
    assert found["meta"][0] == pytest.approx(found["cpu"][0], rel=0.01)
    assert not any(value.device == CPU for value in codec.state_dict().values())


def test_a_plan_counts_the_published_decoder() -> None:
    """132 MB of weights, as published, and a peak that grows with the codes."""
    codec = SimpleAR(checkpoint="SimpleAR-0.5B-SFT").codec_on_meta()
    assert isinstance(codec, CosmosDecoder)
    size = sum(value.numel() * value.element_size() for value in codec.parameters())
    assert size == pytest.approx(132e6, rel=0.01)
    ids = torch.zeros(2, 64, 64, dtype=torch.int64, device="meta")
    with torch.no_grad(), Meter() as meter:
        images = codec.decode_ids(ids)
    assert images.shape == (2, 3, 1024, 1024)
    assert 0.26e9 < meter.peak < 0.3e9, "one image at a time"


def named(decoder: Path, module: torch.nn.Module, device: torch.device) -> str:
    path = decoder.with_name("other.jit")
    write_decoder(path, module)
    with pytest.raises(WeightsError) as caught:
        load_decoder(path, device)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "`vq`" in message
    return message


@pytest.mark.parametrize("device", [CPU, META])
def test_another_codecs_decoder_is_refused_by_file_and_key(
    decoder: Path, device: torch.device
) -> None:
    levels = named(decoder, decoder_module(levels=(8, 8, 8, 6, 5)), device)
    assert "[8, 8, 8, 6, 5], not [8, 8, 8, 5, 5, 5]" in levels
    assert "[1, 3, 16, 16], not [1, 3, 32, 32]" in named(decoder, decoder_module(patch=8), device)
    assert "cannot decode" in named(decoder, torch.nn.Flatten(0), device)
    path = decoder.with_name("weights.jit")
    torch.save(decoder_module().state_dict(), path)
    with pytest.raises(WeightsError, match=r"not a TorchScript module.*`vq` needs"):
        load_decoder(path, device)
