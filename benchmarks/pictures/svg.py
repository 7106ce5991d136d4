"""A small writer of SVG pictures.

A picture is a card with a background of its own, in light colours or, where the page or the browser
asks for it, in dark ones. So it reads on any page. States have a sign or a line style besides their
colour.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from xml.sax.saxutils import escape, quoteattr

WIDTH = 440  # of every picture, in its own units; 13 of them are the height of text
_SCALE = 1.25  # pixels of a unit where there is room

_LIGHT = {
    "card": "#ffffff",
    "edge": "#d0d7de",
    "ink": "#1f2328",
    "soft": "#59636e",
    "line": "#b7c0c9",
    "blank": "#edf0f3",
    "yes": "#1a7f37",
    "no": "#cf222e",
    "new": "#bc4c00",
    "mark": "#0969da",
}
_DARK = {
    "card": "#1b1f26",
    "edge": "#3d444d",
    "ink": "#e6e9ed",
    "soft": "#a2abb6",
    "line": "#566070",
    "blank": "#2c323b",
    "yes": "#4ac26b",
    "no": "#ff7b72",
    "new": "#f0a050",
    "mark": "#6cb6ff",
}
_STYLE = """\
text { font-family: system-ui, sans-serif; font-size: 13px; fill: var(--ink); }
.small { font-size: 11.5px; }
.soft { fill: var(--soft); }
.bold { font-weight: 650; }
.middle { text-anchor: middle; }
.end { text-anchor: end; }
.card { fill: var(--card); stroke: var(--edge); }
.cover { fill: var(--card); }
.blank { fill: var(--blank); }
.line { fill: none; stroke: var(--line); }
.cell { stroke: var(--line); }
.yes { fill: none; stroke: var(--yes); stroke-width: 2.5; }
.no { fill: none; stroke: var(--no); stroke-width: 2.5; }
.new { fill: none; stroke: var(--new); stroke-width: 2.5; stroke-dasharray: 4 2; }
.mark { fill: none; stroke: var(--mark); stroke-width: 2.5; }
.halo { fill: none; stroke: var(--card); stroke-width: 5; }
.yes-fill { fill: var(--yes); }
.no-fill { fill: var(--no); }
.new-fill { fill: var(--new); }
.mark-fill { fill: var(--mark); }
.ink-fill { fill: var(--ink); }
.soft-fill { fill: var(--soft); }
.axis { fill: none; stroke: var(--line); stroke-dasharray: 2 3; }
.soft-line { fill: none; stroke: var(--soft); stroke-width: 2; }
.mark-line { fill: none; stroke: var(--mark); stroke-width: 2; stroke-dasharray: 7 3; }
.new-line { fill: none; stroke: var(--new); stroke-width: 2.5; }
.yes-line { fill: none; stroke: var(--yes); stroke-width: 2.5; }
.lost { fill: none; stroke: var(--no); stroke-width: 1.5; stroke-dasharray: 3 2; }
.level { fill: none; stroke: var(--ink); stroke-width: 2; }
.dot { fill: var(--ink); stroke: var(--card); stroke-width: 1.5; }
image { image-rendering: pixelated; }
"""
_TICK = ((-0.5, 0.05), (-0.15, 0.4), (0.5, -0.4))
_CROSS = (((-0.4, -0.4), (0.4, 0.4)), ((-0.4, 0.4), (0.4, -0.4)))


class Picture:
    """An SVG file, element by element. Classes are those of the style above.

    Args:
        name: what it shows, for those who do not see it.
        height: in its own units.
        style: further rules.
    """

    def __init__(self, name: str, height: float, style: str = "") -> None:
        self._name = name
        self._height = height
        self._style = _STYLE + style
        self._lines: list[str] = []
        self.rect(0.5, 0.5, WIDTH - 1, height - 1, "card", rx=8)

    def add(self, tag: str, content: str | None = None, /, **attributes: object) -> None:
        """An element. Underscores of attributes' names stand for dashes, one at the end for none.
        An attribute that is None is left out.
        """
        self._lines.append(_element(tag, content, attributes))

    def rect(
        self, x: float, y: float, width: float, height: float, classes: str, **other: object
    ) -> None:
        self.add("rect", x=x, y=y, width=width, height=height, class_=classes, **other)

    def text(self, x: float, y: float, text: str, classes: str = "", **other: object) -> None:
        self.add("text", escape(text), x=x, y=y, class_=classes or None, **other)

    def path(self, points: Sequence[tuple[float, float]], classes: str, **other: object) -> None:
        """Straight lines from point to point."""
        places = "L".join(f"{_number(x)} {_number(y)}" for x, y in points)
        self.add("path", d=f"M{places}", class_=classes, **other)

    def arrow(self, x: float, y: float, length: float) -> None:
        """An arrow to the right."""
        tip = x + length
        self.path([(x, y), (tip, y)], "line")
        self.path([(tip - 4, y - 3.5), (tip, y), (tip - 4, y + 3.5)], "line")

    def tick(self, x: float, y: float, size: float) -> None:
        """The sign of what is accepted, around a point."""
        self._sign([[(x + size * a, y + size * b) for a, b in _TICK]], "yes")

    def cross(self, x: float, y: float, size: float) -> None:
        """The sign of what is rejected, around a point."""
        strokes = [[(x + size * a, y + size * b) for a, b in stroke] for stroke in _CROSS]
        self._sign(strokes, "no")

    def _sign(self, strokes: Sequence[Sequence[tuple[float, float]]], classes: str) -> None:
        for name in ("halo", classes):
            for stroke in strokes:
                self.path(stroke, name)

    def image(self, x: float, y: float, side: float, data: str) -> None:
        """A square picture. data: a PNG in base64."""
        self.add("image", x=x, y=y, width=side, height=side, href=f"data:image/png;base64,{data}")

    @contextmanager
    def group(self, tag: str = "g", **attributes: object) -> Iterator[None]:
        """What is added meanwhile is inside this element."""
        self._lines.append(_element(tag, "", attributes).removesuffix(f"</{tag}>"))
        yield
        self._lines.append(f"</{tag}>")

    def __str__(self) -> str:
        size = f"{_number(WIDTH * _SCALE)}", f"{_number(self._height * _SCALE)}"
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" width="{size[0]}" height="{size[1]}"'
                f' viewBox="0 0 {WIDTH} {_number(self._height)}" role="img"'
                f" aria-label={quoteattr(self._name)}>",
                "<style>",
                _scheme(_LIGHT),
                f"@media (prefers-color-scheme: dark) {{ {_scheme(_DARK)} }}",
                f"{self._style}</style>",
                *self._lines,
                "</svg>\n",
            ]
        )


def _element(tag: str, content: str | None, attributes: dict[str, object]) -> str:
    words = [tag]
    for key, value in attributes.items():
        if value is not None:
            text = _number(value) if isinstance(value, int | float) else str(value)
            words.append(f"{key.rstrip('_').replace('_', '-')}={quoteattr(text)}")
    opening = " ".join(words)
    return f"<{opening}/>" if content is None else f"<{opening}>{content}</{tag}>"


def _number(value: float) -> str:
    """At most two decimals: the same text on every machine."""
    return f"{round(value, 2) + 0:g}"


def _scheme(colours: dict[str, str]) -> str:
    values = "; ".join(f"--{name}: {colour}" for name, colour in colours.items())
    return f":root {{ {values}; }}"
