"""A draft tree: one pass over all its nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.pictures.cells import mark_test, swatch
from benchmarks.pictures.runs import Pass, colours, record
from benchmarks.pictures.svg import WIDTH, Picture
from search_spaces.static_trees import NAMED_TREES
from workers.loading.models import Models

_NAME = "small_7"  # of the quick start
_SIDE = 30
_ACROSS = 72  # from level to level
_DOWN = 50  # from leaf to leaf


def measure(models: Models) -> dict[str, Any]:
    """The first pass that accepts a node whose sibling it has rejected, and another node."""
    run = record(models, {"drafter": "eagle", "tree": {"policy": "static", "name": _NAME}})
    ranks = NAMED_TREES[_NAME].rank
    for pass_ in run.passes:
        states = node_states(pass_)
        path = [rank for rank, state in zip(ranks, states, strict=True) if state == "accepted"]
        if len(path) > 1 and any(path):
            break
    return {
        "tokens": run.tokens,
        "pass_count": len(run.passes),
        "accepted_length": round(run.accepted_length, 2),
        "accepted": [pass_.accepted for pass_ in run.passes],
        "number": pass_.number,
        "root": pass_.root,
        "drafts": pass_.drafts,
        "parents": pass_.parents,
        "states": states,
        "last": pass_.emitted[-1],
        "colours": colours(models, [pass_.root, *pass_.drafts, pass_.emitted[-1]]),
    }


def node_states(pass_: Pass) -> list[str]:
    """Of each node: accepted, rejected, or not tested (empty). Siblings are tested in order, until
    one is accepted.
    """
    states = [""] * len(pass_.drafts)
    parent = -1
    for token in pass_.emitted:
        is_last = states.count("accepted") == pass_.accepted
        for node in [node for node, above in enumerate(pass_.parents) if above == parent]:
            if pass_.drafts[node] == token and not is_last:
                states[node] = "accepted"
                parent = node
                break
            states[node] = "rejected"
    return states


def draw(facts: dict[str, Any]) -> Picture:
    picture = Picture(
        "A draft tree of six nodes in four levels, with the path of the nodes that were accepted,"
        " the siblings that were rejected before them, and the nodes that were not tested.",
        214,
    )
    places = _places(facts["parents"])
    for level in range(1, 5):
        picture.text(24 + _ACROSS * level, 24, f"level {level}", "small soft")
    for node, parent in enumerate(facts["parents"]):
        x, y = places[parent]
        right, lower = places[node]
        is_accepted = facts["states"][node] == "accepted"
        ends = [(x + _SIDE, y + _SIDE / 2), (right, lower + _SIDE / 2)]
        picture.path(ends, "yes" if is_accepted else "line")
    picture.text(24, 24, "last", "small soft")
    swatch(picture, *places[-1], _SIDE, facts["colours"][str(facts["root"])])
    for node, (code, state) in enumerate(zip(facts["drafts"], facts["states"], strict=True)):
        x, y = places[node]
        with picture.group(opacity=None if state else 0.4):
            swatch(picture, x, y, _SIDE, facts["colours"][str(code)])
        if state:
            mark_test(picture, x, y, _SIDE, is_accepted=state == "accepted")
    _draw_emitted(picture, 24 + _ACROSS * 5, facts)
    words = f"{facts['pass_count']} passes, {facts['accepted_length']:.2f} tokens each on average."
    picture.text(WIDTH / 2, 202, words, "middle")
    return picture


def _places(parents: Sequence[int]) -> dict[int, tuple[float, float]]:
    """Upper left corners of the nodes, and of the root (-1): leaves below each other, and a parent
    level with its first child.
    """
    children: dict[int, list[int]] = {node: [] for node in range(-1, len(parents))}
    for node, parent in enumerate(parents):
        children[parent].append(node)
    places: dict[int, tuple[float, float]] = {}
    leaves = 0

    def settle(node: int, level: int) -> None:
        nonlocal leaves
        places[node] = (24 + _ACROSS * level, 40 + _DOWN * leaves)
        for child in children[node]:
            settle(child, level + 1)
        if not children[node]:
            leaves += 1

    settle(-1, 0)
    return places


def _draw_emitted(picture: Picture, x: float, facts: dict[str, Any]) -> None:
    """The accepted tokens and the last one, one below the other."""
    accepted = [
        code
        for code, state in zip(facts["drafts"], facts["states"], strict=True)
        if state == "accepted"
    ]
    picture.text(x, 24, "emitted", "small soft")
    for place, code in enumerate([*accepted, facts["last"]]):
        y = 40 + 26 * place
        swatch(picture, x, y, 18, facts["colours"][str(code)])
        picture.rect(x, y, 18, 18, "yes" if place < len(accepted) else "new", rx=3)
