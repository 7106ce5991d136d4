"""The words of the procedural scenes: attribute slots, and captions to and from attribute rows.

A scene is a row of `len(SLOTS)` small integers, each an index into its slot's values. Objects stand
in *spatial* order (the left or upper one first), so that "A left of B" and "B right of A" are one
row.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

BACKGROUNDS = ("smooth", "cloudy", "striped", "checkered")
BACKGROUND_COLOURS = ("grey", "brown", "blue", "green", "pink", "yellow")
RELATIONS = ("alone", "left of", "above")
POSITIONS = ("centre", "left", "right", "top", "bottom")
SHAPES = ("circle", "square", "triangle", "star", "ring", "cross")
SIZES = ("small", "large")
COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "white", "black")
PATTERNS = ("plain", "striped", "dotted")

# Slots with their values. A lone object has "none" in every `second_` slot; a pair has position
# "centre".
SLOTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("background", BACKGROUNDS),
    ("background_colour", BACKGROUND_COLOURS),
    ("relation", RELATIONS),
    ("position", POSITIONS),
    ("first_shape", SHAPES),
    ("first_size", SIZES),
    ("first_colour", COLOURS),
    ("first_pattern", PATTERNS),
    ("second_shape", ("none", *SHAPES)),
    ("second_size", ("none", *SIZES)),
    ("second_colour", ("none", *COLOURS)),
    ("second_pattern", ("none", *PATTERNS)),
)
SLOT_INDEX: Mapping[str, int] = {name: i for i, (name, _) in enumerate(SLOTS)}

_PLACES = {
    "left": "on the left",
    "right": "on the right",
    "top": "at the top",
    "bottom": "at the bottom",
}
_SYNONYMS = {
    "big": "large",
    "huge": "large",
    "little": "small",
    "tiny": "small",
    "gray": "grey",
    "violet": "purple",
    "chequered": "checkered",
    "checked": "checkered",
    "stripy": "striped",
    "spotted": "dotted",
    "disc": "circle",
    "disk": "circle",
    "box": "square",
    "solid": "plain",
    "centered": "centre",
    "center": "centre",
    "middle": "centre",
    "gradient": "smooth",
    "upper": "top",
    "lower": "bottom",
}
_FILLERS = frozenset(
    ("a", "an", "the", "one", "of", "and", "with", "is", "are", "at", "in", "on", "to", "coloured")
)
_RELATION = re.compile(
    r"\b(?:(?:to|on) the )?(left|right) of\b|\b(above|over|on top "
    r"of)\b|\b(below|under|beneath|underneath)\b"
)
_MAX_LENGTH = 1000  # the patterns take time that grows with its square
_BACKGROUND = re.compile(
    r"(?:\b(?:on|over|against|before|with|in front of) )?(?:(?:a|an|the) )?((?:\w+ "
    r"){0,3}?)background\b"
)


def caption(row: Sequence[int]) -> str:
    """The caption of a row [12], e.g. "a small red ring above a large blue star on a smooth pink
    background".
    """
    value = {name: values[int(row[i])] for i, (name, values) in enumerate(SLOTS)}

    def thing(which: str) -> str:
        size, colour, pattern, shape = (
            value[f"{which}_{slot}"] for slot in ("size", "colour", "pattern", "shape")
        )
        if pattern == "plain":
            return f"a {size} {colour} {shape}"
        return f"a {size} {colour} {pattern} {shape}"

    words = thing("first")
    if value["relation"] != "alone":
        words += f" {value['relation']} {thing('second')}"
    elif value["position"] != "centre":
        words += " " + _PLACES[value["position"]]
    return f"{words} on a {value['background']} {value['background_colour']} background"


def parse(text: str) -> tuple[int, ...]:
    """The attribute row [12] of a caption; lenient about articles, word order, synonyms and omitted
    parts.

    An object needs a shape and a colour. Left out, the size is large, the pattern plain, the
    position the centre and the background smooth grey. "A right of B" and "A below B" are turned
    into spatial order.

    Raises:
        ValueError: an unknown word (the known ones are listed), a missing shape or colour, a
            contradiction, more than 1,000 characters.
    """
    if len(text) > _MAX_LENGTH:
        raise ValueError(
            f"caption {text[:40]!r}...: {len(text)} characters; a caption of a scene has at most "
            f"{_MAX_LENGTH}"
        )
    words = " ".join(_SYNONYMS.get(word, word) for word in re.findall(r"[a-z]+", text.lower()))
    chosen = {
        "background": "smooth",
        "background_colour": "grey",
        "relation": "alone",
        "position": "centre",
    }
    if found := _BACKGROUND.search(words):
        tables = {"background": BACKGROUNDS, "background_colour": BACKGROUND_COLOURS}
        # People call a background without texture plain.
        phrase = found.group(1).replace("plain", "smooth")
        chosen |= _classify(phrase, tables, "the background", text)
        words = words[: found.start()] + " " + words[found.end() :]
    related = _RELATION.search(words)
    if related is None:
        first, second = words, None
    else:
        first, second = words[: related.start()], words[related.end() :]
        if related.group(1) == "right" or related.group(3):
            first, second = second, first
        chosen["relation"] = "left of" if related.group(1) else "above"
    chosen |= _object(first, "first", text, placed=second is None)
    if second is None:
        chosen |= {f"second_{part}": "none" for part in ("shape", "size", "colour", "pattern")}
    else:
        chosen |= _object(second, "second", text, placed=False)
    return tuple(values.index(chosen[name]) for name, values in SLOTS)


def _object(words: str, which: str, text: str, *, placed: bool) -> dict[str, str]:
    """The slots of one object's phrase; `placed` allows a position such as "at the top"."""
    tables = {"shape": SHAPES, "size": SIZES, "colour": COLOURS, "pattern": PATTERNS}
    if placed:
        tables["position"] = POSITIONS
    found = _classify(words, tables, f"the {which} object", text)
    for part, example in (("shape", SHAPES), ("colour", COLOURS)):
        if part not in found:
            raise ValueError(
                f"caption {text!r}: {which} object has no {part}; name one of: {', '.join(example)}"
            )
    position = {"position": found.pop("position")} if "position" in found else {}
    found = {"size": "large", "pattern": "plain"} | found
    return {f"{which}_{part}": value for part, value in found.items()} | position


def _classify(
    words: str, tables: Mapping[str, Sequence[str]], where: str, text: str
) -> dict[str, str]:
    """Sorts words into the slots of `tables`; the values of different slots in one table are
    distinct words.
    """
    found: dict[str, str] = {}
    for word in words.split():
        if word in _FILLERS:
            continue
        slot = next((name for name, values in tables.items() if word in values), None)
        if slot is None:
            offered = {name: filter(_is_offered, values) for name, values in tables.items()}
            known = "; ".join(f"{name}: {', '.join(values)}" for name, values in offered.items())
            raise ValueError(
                f"caption {text!r}: {where} has an unknown word {word!r}; known words are {known}"
            )
        if found.setdefault(slot, word) != word:
            two = f"{found[slot]!r} and {word!r}"
            raise ValueError(
                f"caption {text!r}: {where} has two values for {slot}: {two}; keep one"
            )
    return found


def _is_offered(word: str) -> bool:
    """False for dots: they are in the captions of training and sweeps, but the built-in codec loses
    them.
    """
    return word != "dotted"
