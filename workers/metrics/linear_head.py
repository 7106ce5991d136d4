"""The head that the aesthetic predictor and ImageReward share: five linear layers in a row, nothing between them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

WIDTHS = (1024, 128, 64, 16, 1)
PLACES = ("0", "2", "4", "6", "7")  # dropout sat at 1, 3 and 5 while it was trained


class LinearHead(nn.Module):
    """One number from an embedding; `layers.{0, 2, 4, 6, 7}` as in the published files."""

    def __init__(self, inputs: int, widths: Sequence[int] = WIDTHS) -> None:
        super().__init__()
        sizes = zip(PLACES, (inputs, *widths), widths, strict=False)
        self.layers = nn.ModuleDict({place: nn.Linear(wide, narrow) for place, wide, narrow in sizes})

    def forward(self, embeddings: Tensor) -> Tensor:
        """Numbers [n] of embeddings [n, inputs]."""
        for place in PLACES:
            embeddings = self.layers[place](embeddings)
        return embeddings.squeeze(1)
