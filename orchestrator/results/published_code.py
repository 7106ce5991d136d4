"""A setting in the flags of published code: LANTERN's, EAGLE's, SJD's and GSD's, or why they cannot express it.

Read from the repositories' entry points: jadohu/LANTERN at 3a56e45, SafeAILab/EAGLE at cb7e084,
tyshiwo1/Accelerating-T2I-AR-with-SJD at b389cfb, junhyukso/GSD at 4216c7c.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from search_spaces.acceptance import EXACT
from search_spaces.trial import DecodingConfig

_LANTERN_TREE = (5, 10, 58)  # levels, width, nodes; its code has no flags for them
_LANTERN_STATIC = "eagle1_26"
_SJD_INITIALISATIONS = {"random": "random", "repeat_left": "repeat_horizon"}
_LANTERN_TARGETS = {"anole": "anole", "lumina": "lumina_mgpt"}  # by the first part of a target's name
_GSD_WINDOW = (7, 6)


@dataclass(frozen=True, slots=True)
class PublishedCode:
    """repository: OWNER/NAME. command: what to run or to set; empty if the code cannot express the setting. lacks: what
    it cannot express, as sentences.
    """

    repository: str
    command: str
    lacks: tuple[str, ...]


def published_code(config: DecodingConfig, target: str) -> list[PublishedCode]:
    """The setting for each repository whose method it is of: one for its drafter, and one for its rule.

    target: its name, such as `llamagen-t2i-XL-256`.
    """
    rule, drafter = config.acceptance.neighbourhood.kind, config.drafter.kind
    found = []
    if config.is_vanilla or drafter == "eagle":
        found.append(_code("jadohu/LANTERN", config, target, _lantern_lacks, _lantern))
    if drafter in ("eagle", "eagle3"):
        found.append(_code("SafeAILab/EAGLE", config, target, _eagle_lacks, _eagle))
    if drafter == "jacobi" and rule != "grouped":
        found.append(_code("tyshiwo1/Accelerating-T2I-AR-with-SJD", config, target, _sjd_lacks, _sjd))
    if drafter == "jacobi" and rule == "grouped":
        found.append(_code("junhyukso/GSD", config, target, _gsd_lacks, _gsd))
    return found


def _code(
    repository: str,
    config: DecodingConfig,
    target: str,
    find_lacks: Callable[[DecodingConfig, str], Iterator[str]],
    write: Callable[[DecodingConfig, str], str],
) -> PublishedCode:
    lacks = tuple(find_lacks(config, target))
    return PublishedCode(repository, "" if lacks else write(config, target), lacks)


def _common_lacks(config: DecodingConfig) -> Iterator[str]:
    rule, sampling = config.acceptance, config.sampling
    if rule.schedule != EXACT.schedule:
        yield f"it has no schedule of relaxation, here {rule.schedule.kind}"
    if rule.verification != EXACT.verification:
        yield f"it verifies the drafts of a path one by one, here {rule.verification.kind}"
    if rule.resampling != EXACT.resampling:
        yield f"it samples after a rejection as in its paper, here {rule.resampling}"
    if sampling is not None and sampling.dynamic_temperature.kind != "constant":
        yield "its temperature is constant"


def _model_argument(target: str) -> str | None:
    """LANTERN's --model."""
    if target.startswith("llamagen-t2i"):
        return "llamagen" if target.endswith("256") else "llamagen2"
    return _LANTERN_TARGETS.get(target.partition("-")[0])


def _lantern_lacks(config: DecodingConfig, target: str) -> Iterator[str]:
    rule, tree = config.acceptance.neighbourhood, config.policy.kind
    shape = config.policy.to_mapping()
    if _model_argument(target) is None:
        yield f"it has no target {target}"
    yield from _common_lacks(config)
    if rule.kind not in ("none", "additive", "multiplicative"):
        yield f"it has no neighbourhood {rule.kind}"
    if getattr(rule, "proximity", "l2") != "l2" or getattr(rule, "divergence", "tvd") != "tvd":
        yield "its neighbours are those of least l2 distance, within a total variation"
    if rule.kind == "multiplicative" and tree != "static":
        yield "it has lambda with a static tree alone"
    is_default = tree == "dynamic" and (shape["depth"], shape["width"], shape["nodes"]) == _LANTERN_TREE
    is_static = tree == "static" and shape.get("name") == _LANTERN_STATIC and shape["children"] == "sampled"
    if not (config.is_vanilla or is_default or is_static):
        levels, width, nodes = _LANTERN_TREE
        yield f"its trees are dynamic ({levels} levels of {width}, {nodes} nodes) or the static {_LANTERN_STATIC}"


def _lantern(config: DecodingConfig, target: str) -> str:
    rule, sampling = config.acceptance.neighbourhood.to_mapping(), config.sampling
    words = ["python main.py generate_images", f"--model {_model_argument(target)} --model_path MODEL"]
    words.append("--model_type base" if config.is_vanilla else "--model_type eagle --drafter_path DRAFTER")
    if config.policy.kind == "static":
        words.append("--static_tree")
    if "k" in rule:
        bound = rule.get("delta", rule.get("lambda"))
        words.append(f"--lantern --lantern_k {rule['k']} --lantern_delta {bound:g}")
    if sampling is not None:
        words.append(f"--temperature {sampling.temperature:g} --top_k {sampling.top_k}")
        words.append(f"--top_p {sampling.top_p:g} --cfg {sampling.cfg:g}")
    return " \\\n    ".join(words)


def _eagle_lacks(config: DecodingConfig, target: str) -> Iterator[str]:
    yield from _common_lacks(config)
    if not config.acceptance.neighbourhood.exact:
        yield f"its acceptance is exact, here {config.acceptance.neighbourhood.kind}"
    if config.policy.kind != "dynamic":
        yield f"its trees are dynamic, here {config.policy.kind}"


def _eagle(config: DecodingConfig, target: str) -> str:
    tree = config.policy.to_mapping()  # its depth counts the levels below the first, its total the root as well
    keys = {"use_eagle3": config.drafter.kind == "eagle3", "total_token": tree["nodes"] + 1}
    keys |= {"depth": tree["depth"] - 1, "top_k": tree["width"]}
    values = ", ".join(f"{key}={value}" for key, value in keys.items())
    return f"EaModel.from_pretrained({values}, ...)  # of language models, without guidance"


def _sjd_lacks(config: DecodingConfig, target: str) -> Iterator[str]:
    drafter = config.drafter.to_mapping()
    yield from _common_lacks(config)
    if not config.acceptance.neighbourhood.exact:
        yield f"its acceptance is exact, here {config.acceptance.neighbourhood.kind}"
    if config.policy.kind != "chain":
        yield f"its window is a chain, here {config.policy.kind}"
    if drafter["redraw"] != "fresh":
        yield f"it draws rejected drafts afresh, here {drafter['redraw']}"
    if drafter["initialisation"] not in _SJD_INITIALISATIONS:
        yield f"it starts a position as a random token or its left neighbour's, here {drafter['initialisation']}"


def _sjd(config: DecodingConfig, target: str) -> str:
    drafter, tree, sampling = config.drafter.to_mapping(), config.policy.to_mapping(), config.sampling
    values: Mapping[str, Any] = {  # its window counts the token in front of the drafts
        "max_num_new_tokens": tree["length"] + 1,
        "multi_token_init_scheme": repr(_SJD_INITIALISATIONS[drafter["initialisation"]]),
        **({} if sampling is None else {"image_top_k": sampling.top_k, "guidance_scale": f"{sampling.cfg:g}"}),
        "prefix_token_sampler_scheme": "'speculative_jacobi'",
    }
    script = "test_GSD.py" if config.acceptance.neighbourhood.kind == "grouped" else "test_lumina_mgpt.py"
    lines = [f"{key} = {value}" for key, value in values.items()]
    return "\n".join([f"# at the head of {script}, or of the script of another target", *lines])


def _gsd_lacks(config: DecodingConfig, target: str) -> Iterator[str]:
    rule = config.acceptance.neighbourhood.to_mapping()
    yield from (text for text in _sjd_lacks(config, target) if not text.startswith("its acceptance"))
    if (rule["below"], rule["above"]) != _GSD_WINDOW:
        yield f"its groups span {_GSD_WINDOW[0]} ranks below and {_GSD_WINDOW[1]} above"
    if not target.startswith("lumina"):
        yield f"it has no target {target}"


def _gsd(config: DecodingConfig, target: str) -> str:
    rule = config.acceptance.neighbourhood.to_mapping()
    constants = f"p_thr = {rule['tolerance']:g}\nd_thr = {rule['radius']:g}  # of distances between input embeddings"
    return f"{_sjd(config, target)}\n# in scheduler/jacobi_iteration_lumina_mgpt.py\n{constants}"
