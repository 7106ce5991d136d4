"""Procedural captioned scenes, 48x48 RGB: one or two objects on a background, rendered by
vectorised torch.

Scene i of a seed is a pure function of (seed, i): every random number comes from a counter-based
hash, so neither the batch nor the order in which scenes are rendered changes any. Backgrounds are
smooth (many codes fit equally well) or textured; outlines are anti-aliased from signed distances,
so they are crisp; fine grain lies over everything.

Shape legend: n scenes, k random numbers, H = W = 48 pixels.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from workers.scenes.captions import BACKGROUND_COLOURS, COLOURS, SHAPES, SLOT_INDEX, SLOTS, caption

IMAGE_SIZE = 48
GRAIN = 0.026  # standard deviation of the grain, in units of the [0, 1] range
_OUTLINE = 1.1  # width in pixels
_RADIUS_ALONE = (8.0, 14.0)  # pixels; small and large
_RADIUS_PAIR = (6.5, 10.0)  # pixels; small and large
_OFF_CENTRE = 8  # pixels from the middle of the image
_PAIR_OFFSET = 12  # pixels from the middle of the image

_RGB = {
    "red": (0.86, 0.12, 0.14),
    "orange": (0.96, 0.52, 0.08),
    "yellow": (0.98, 0.86, 0.15),
    "green": (0.13, 0.62, 0.22),
    "blue": (0.12, 0.30, 0.85),
    "purple": (0.55, 0.18, 0.70),
    "white": (0.95, 0.95, 0.95),
    "black": (0.12, 0.12, 0.14),
}
_BACKGROUND_RGB = {
    "grey": (0.58, 0.59, 0.61),
    "brown": (0.52, 0.38, 0.27),
    "blue": (0.50, 0.64, 0.82),
    "green": (0.50, 0.68, 0.47),
    "pink": (0.86, 0.62, 0.69),
    "yellow": (0.86, 0.79, 0.50),
}

# Purposes of random numbers: the counter's upper half, so that no two uses share a number.
_ATTRIBUTES, _BACKGROUND, _PLACES, _GRAIN = range(4)


def _signed(value: int) -> int:
    """An unsigned 64-bit constant as the signed integer that torch's int64 takes."""
    return value - (1 << 64) if value >= 1 << 63 else value


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_MIX_1 = _signed(0xBF58476D1CE4E5B9)
_MIX_2 = _signed(0x94D049BB133111EB)


def _mix(z: Tensor) -> Tensor:
    """SplitMix64's finaliser (Steele et al. 2014) on int64, which wraps; masks turn the shifts into
    logical ones.
    """
    z = z * _GOLDEN + 1
    z = (z ^ ((z >> 30) & 0x3FFFFFFFF)) * _MIX_1
    z = (z ^ ((z >> 27) & 0x1FFFFFFFFF)) * _MIX_2
    return z ^ ((z >> 31) & 0x1FFFFFFFF)


def _hash(seed: int, indices: Tensor, purpose: int, k: int) -> Tensor:
    """k independent 64-bit words per scene: int64 [n, k]."""
    key = _mix(_mix(torch.full_like(indices, seed)) + indices)
    return _mix(key[:, None] + ((purpose << 32) + torch.arange(k, device=indices.device)))


def _uniform(seed: int, indices: Tensor, purpose: int, k: int) -> Tensor:
    """Uniforms in [0, 1) with 24 bits: float32 [n, k]."""
    return ((_hash(seed, indices, purpose, k) >> 40) & 0xFFFFFF).float() / (1 << 24)


def sample_attributes(seed: int, indices: range | Tensor) -> Tensor:
    """Random attribute rows, int64 [n, 12], of scenes `indices` of `seed`; no object has its
    background's colour.
    """
    index = torch.as_tensor(indices, dtype=torch.int64)
    u = _uniform(seed, index, _ATTRIBUTES, len(SLOTS) + 1)
    sizes = torch.tensor([len(values) for _, values in SLOTS], device=index.device)
    rows = (u[:, : len(SLOTS)] * sizes).long()
    column = SLOT_INDEX
    pair = u[:, len(SLOTS)] < 0.6
    rows[:, column["relation"]] = torch.where(pair, 1 + (u[:, column["relation"]] * 2).long(), 0)
    rows[:, column["position"]] = rows[:, column["position"]].masked_fill(pair, 0)
    # The colours left once the background's is taken out, in order, picked by the same uniform.
    same = [COLOURS.index(name) if name in COLOURS else len(COLOURS) for name in BACKGROUND_COLOURS]
    taken = torch.tensor(same, device=index.device)[rows[:, column["background_colour"]]]
    free = len(COLOURS) - (taken < len(COLOURS)).long()
    for which, first_value in (("first", 0), ("second", 1)):  # `second_` slots start with "none"
        if which == "second":
            for part in ("shape", "size", "pattern"):
                slot = column[f"second_{part}"]
                rows[:, slot] = 1 + (u[:, slot] * (sizes[slot] - 1)).long()
        slot = column[f"{which}_colour"]
        pick = (u[:, slot] * free).long()
        rows[:, slot] = pick + (pick >= taken) + first_value
    second = slice(column["second_shape"], len(SLOTS))
    rows[:, second] = rows[:, second].masked_fill(~pair[:, None], 0)
    return rows


def sample_captions(seed: int, count: int) -> list[str]:
    """The captions of scenes 0..count-1 of `seed`; the built-in model was trained on seed 0."""
    return [caption(row) for row in sample_attributes(seed, range(count)).tolist()]


def render(attributes: Tensor, seed: int, indices: range | Tensor, *, grain: bool = True) -> Tensor:
    """Render attribute rows [n, 12] as scenes `indices` of `seed`: float32 [n, 3, 48, 48] in [0,
    1].

    Attributes fix what the caption says; (seed, index) fixes the rest: exact places, gradient,
    phase of stripes, grain. `grain=False` leaves out only the grain: what a perfect denoiser would
    return.

    Raises:
        ValueError: attributes and indices differ in number, or the rows are not 12 wide.
    """
    index = torch.as_tensor(indices, dtype=torch.int64, device=attributes.device)
    if attributes.dim() != 2 or attributes.shape != (len(index), len(SLOTS)):
        shape = list(attributes.shape)
        needed = [len(index), len(SLOTS)]
        raise ValueError(
            f"render: attributes have shape {shape} for {len(index)} indices; needed: {needed}"
        )
    rows = attributes.long()
    axis = torch.arange(IMAGE_SIZE, device=rows.device, dtype=torch.float32)
    image = _render_background(rows, _uniform(seed, index, _BACKGROUND, 12), axis)
    image = _render_objects(image, rows, _uniform(seed, index, _PLACES, 4), axis)
    if grain:
        image = image + GRAIN * _grain(seed, index)[:, None]
    return image.clamp(0, 1)


def _grain(seed: int, index: Tensor) -> Tensor:
    """Film grain of unit variance, a little correlated between neighbours so that it survives
    averaging; [n, H, W].
    """
    side = IMAGE_SIZE + 1
    words = _hash(seed, index, _GRAIN, side * side).reshape(-1, side, side)
    # The sum of four 16-bit uniforms is close to normal: mean 2, variance 4 / 12.
    pieces = torch.stack([((words >> shift) & 0xFFFF).float() for shift in (0, 16, 32, 48)])
    white = (pieces.sum(0) / 65536 - 2) * math.sqrt(3)
    rows = white[:, 1:] + 0.6 * white[:, :-1]
    return (rows[:, :, 1:] + 0.6 * rows[:, :, :-1]) / 1.36


def _render_background(rows: Tensor, u: Tensor, axis: Tensor) -> Tensor:
    """Background colour times a brightness field; [n, 3, H, W]. u [n, 12] uniforms."""
    n = len(rows)
    kind = rows[:, SLOT_INDEX["background"], None, None]
    palette = torch.tensor(list(_BACKGROUND_RGB.values()), device=rows.device)
    x, y = axis[None, None, :], axis[None, :, None]

    def wave(angle: Tensor, cycles: Tensor, phase: Tensor) -> Tensor:
        along = x * torch.cos(2 * math.pi * angle) + y * torch.sin(2 * math.pi * angle)
        return torch.sin(2 * math.pi * (along * cycles / IMAGE_SIZE + phase))

    v = u[:, :, None, None]
    angle = 2 * math.pi * v[:, 0]
    slope = (
        (x / IMAGE_SIZE - 0.5) * torch.cos(angle) + (y / IMAGE_SIZE - 0.5) * torch.sin(angle)
    ).expand(n, -1, -1)
    cloud = sum(
        wave(v[:, 3 * i], 0.6 + 1.2 * v[:, 3 * i + 1], v[:, 3 * i + 2]) for i in range(1, 4)
    )
    # Integer phases: the edges of stripes and checks lie between pixels, so they are sharp without
    # anti-aliasing.
    shift_x = (v[:, 1] * 16).floor()
    shift_y = (v[:, 2] * 16).floor()
    across = torch.where(v[:, 3] < 0.5, x + shift_x, y + shift_y)
    stripes = 1 - 2 * ((across / 4).floor() % 2)
    checks = 1 - 2 * ((((x + shift_x) / 8).floor() + ((y + shift_y) / 8).floor()) % 2)
    texture = torch.where(kind == 2, stripes, checks)
    field = torch.where(
        kind == 0,
        0.40 * slope,
        torch.where(kind == 1, 0.075 * cloud, 0.14 * texture + 0.10 * slope),
    )
    return palette[rows[:, SLOT_INDEX["background_colour"]]][:, :, None, None] * (
        1 + field[:, None]
    )


def _render_objects(image: Tensor, rows: Tensor, u: Tensor, axis: Tensor) -> Tensor:
    """Renders the second object, then the first; u [n, 4] uniforms place them (whole pixels)."""
    middle = IMAGE_SIZE / 2
    relation = rows[:, SLOT_INDEX["relation"]]
    position = rows[:, SLOT_INDEX["position"]]
    # Directions (x, y) of the positions: centre, left, right, top, bottom.
    directions = torch.tensor([[0, 0], [-1, 0], [1, 0], [0, -1], [0, 1]], device=rows.device)
    off = directions[position] * _OFF_CENTRE
    for which, sign in (("second", 1), ("first", -1)):
        jitter = (u[:, :2] if which == "first" else u[:, 2:]) * 2 - 1
        alone = off + (jitter * 3).round()
        # In a pair, the coordinate that carries the relation moves less, so that the objects never
        # touch.
        left = torch.stack(
            [sign * _PAIR_OFFSET + jitter[:, 0].round(), (jitter[:, 1] * 6).round()], 1
        )
        above = torch.stack(
            [(jitter[:, 0] * 6).round(), sign * _PAIR_OFFSET + jitter[:, 1].round()], 1
        )
        paired = torch.where((relation == 1)[:, None], left, above)
        centre = middle + torch.where((relation == 0)[:, None], alone, paired)
        shift = 0 if which == "first" else 1  # `second_` slots start with "none"
        shape, size, colour, pattern = (
            rows[:, SLOT_INDEX[f"{which}_{part}"]] - shift
            for part in ("shape", "size", "colour", "pattern")
        )
        radii = torch.tensor([_RADIUS_ALONE, _RADIUS_PAIR], device=rows.device)
        radius = radii[(relation > 0).long(), size.clamp(min=0)][:, None, None]
        # Pixel centres are at half integers.
        x = (axis + 0.5)[None, None, :] - centre[:, 0, None, None]
        y = (axis + 0.5)[None, :, None] - centre[:, 1, None, None]
        distance = _distance(shape, x / radius, y / radius) * radius
        paint = _paint(colour, pattern, x, y, radius, distance)
        cover = (0.5 - distance).clamp(0, 1)[:, None]
        image = torch.lerp(image, paint, cover)
    return image


def _paint(
    colour: Tensor, pattern: Tensor, x: Tensor, y: Tensor, radius: Tensor, distance: Tensor
) -> Tensor:
    """The object's colours [n, 3, H, W]: shaded from the upper left, or patterned, with a dark
    outline.
    """
    base = torch.tensor(list(_RGB.values()), device=colour.device)[colour.clamp(min=0)]
    weights = torch.tensor([0.30, 0.59, 0.11], device=colour.device)  # for red, green, blue
    light = (base * weights).sum(1, keepdim=True) > 0.55
    other = torch.where(light, base * 0.5, base + 0.62 * (1 - base))[:, :, None, None]
    x, y = x.expand(distance.shape), y.expand(distance.shape)
    shade = 1 - 0.18 * ((x + y) / radius).clamp(-1.2, 1.2)
    stripes = ((y + 24) % 4) < 2
    # Distance to the nearest dot: one is at the object's centre, the others every 4 pixels.
    dots = torch.hypot((x + 50) % 4 - 2, (y + 50) % 4 - 2)
    kind = pattern[:, None, None]
    amount = torch.where(
        kind == 1, stripes.float(), torch.where(kind == 2, (1.6 - dots).clamp(0, 1), 0.0)
    )
    inner = torch.lerp(
        base[:, :, None, None] * shade[:, None], other.expand(-1, -1, *x.shape[1:]), amount[:, None]
    )
    edge = (distance + _OUTLINE + 0.5).clamp(0, 1)[:, None]
    return torch.lerp(inner, inner * 0.35, edge)


def _distance(shape: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Signed distance [n, H, W] to each scene's shape, negative inside, in units of its radius; 10
    for shape -1, which is none.
    """
    result = torch.full((len(shape), y.shape[1], x.shape[2]), 10.0, device=x.device)
    for number, name in enumerate(SHAPES):
        chosen = (shape == number).nonzero()[:, 0]
        if len(chosen):
            result[chosen] = _shape_distance(name, x[chosen], y[chosen])
    return result


def _shape_distance(name: str, x: Tensor, y: Tensor) -> Tensor:
    if name == "circle":
        return torch.hypot(x, y) - 0.98
    if name == "square":
        return torch.maximum(x.abs(), y.abs()) - 0.86
    if name == "triangle":  # equilateral, point up: three half planes
        return torch.maximum(y - 0.72, 0.866 * x.abs() - 0.5 * y - 0.50)
    if name == "ring":
        return (torch.hypot(x, y) - 0.66).abs() - 0.34
    if name == "cross":
        a, b = x.abs(), y.abs()
        return torch.minimum(torch.maximum(a - 1, b - 0.36), torch.maximum(b - 1, a - 0.36))
    assert name == "star", name
    # Five points: fold the plane into one tenth; the edge is the line from the tip (1.12, 0) to the
    # inner corner.
    tenth = math.pi / 5
    angle = torch.atan2(x, -y).remainder(2 * tenth)
    angle = torch.minimum(angle, 2 * tenth - angle)
    radius = torch.hypot(x, y)
    tip = 1.12
    corner = (0.50 * math.cos(tenth), 0.50 * math.sin(tenth))
    normal = (corner[1], tip - corner[0])
    length = math.hypot(*normal)
    return (
        (radius * torch.cos(angle) - tip) * normal[0] + radius * torch.sin(angle) * normal[1]
    ) / length
