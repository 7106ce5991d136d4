"""A setting in the flags of published code: LANTERN's, EAGLE's, SJD's and GSD's, or why they cannot
express it.

Read from the repositories' entry points: jadohu/LANTERN at 3a56e45, SafeAILab/EAGLE at cb7e084,
tyshiwo1/Accelerating-T2I-AR-with-SJD at b389cfb, junhyukso/GSD at 4216c7c.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from search_spaces.acceptance import EXACT
from search_spaces.trial import DecodingConfig

# of LANTERN's dynamic trees, for which it has no flags
_LANTERN_LEVELS = 5
_LUMINA_LEVELS = 6
_LANTERN_WIDTH = 10
_LANTERN_NODES = 58
_LANTERN_TREES = {  # by their names here
    "eagle1_26": "mc_sim_7b_63",
    "lanternpp_58": "naive_extend_57",
    "medusa2_64": "medusa_2_7b_63",
    "balanced_26": "mc_sim_7b_63_balanced",
    "reverse_balanced_26": "reverse_balanced_25",
    "chain_5": "chain",
}
_LUMINA_TOP_K = 2000
_ALL_TOKENS = 1_000_000  # a top-k; these scripts have 0 for 1, or refuse it
_SJD_INITIALISATIONS = {
    "random": "random",
    "repeat_left": "repeat_horizon",
    "sample_left": "sample_horizon",
}
_SJD_SCRIPTS = {
    "lumina": "test_lumina_mgpt.py",
    "emu3": "test_emu3.py",
    "llamagen-t2i": "test_llamagen.py",
}
_SJD_GUIDANCE = {
    "emu3": "classifier_free_guidance",
    "llamagen-t2i": "guidance_scale and --cfg_scale",
}
# by the first part of a target's name
_LANTERN_TARGETS = {"anole": "anole", "lumina": "lumina_mgpt"}
_GSD_WINDOW = (7, 6)


@dataclass(frozen=True, slots=True)
class PublishedCode:
    """A setting in the flags of one repository."""

    repository: str  # OWNER/NAME
    command: str  # what to run or to set; empty if the code cannot express the setting
    lacks: tuple[str, ...]  # what it cannot express, as sentences


def published_code(config: DecodingConfig, target: str) -> list[PublishedCode]:
    """The setting for each repository whose method it is of: one for its drafter, and one for its
    rule.

    target: its name, such as `llamagen-t2i-XL-256`.
    """
    rule = config.acceptance.neighbourhood.kind
    drafter = config.drafter.kind
    found = []
    if config.is_vanilla or drafter == "eagle":
        found.append(_code("jadohu/LANTERN", config, target, _lantern_lacks, _lantern))
    if drafter in ("eagle", "eagle3"):
        found.append(_code("SafeAILab/EAGLE", config, target, _eagle_lacks, _eagle))
    if drafter == "jacobi" and rule != "grouped":
        found.append(
            _code("tyshiwo1/Accelerating-T2I-AR-with-SJD", config, target, _sjd_lacks, _sjd)
        )
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
    rule = config.acceptance
    sampling = config.sampling
    if rule.schedule != EXACT.schedule:
        yield f"it has no schedule of relaxation, here {rule.schedule.kind}"
    if rule.modulation != EXACT.modulation:
        yield f"it relaxes all nodes of a depth alike, here by {rule.modulation.kind}"
    if rule.verification != EXACT.verification:
        yield f"it verifies the drafts of a path one by one, here {rule.verification.kind}"
    if rule.resampling != EXACT.resampling and not rule.neighbourhood.exact:
        yield f"it samples after a rejection as in its paper, here {rule.resampling}"
    if sampling is not None and sampling.dynamic_temperature.kind != "constant":
        yield "its temperature is constant"


def _model_argument(target: str) -> str | None:
    """LANTERN's --model."""
    if target.startswith("llamagen-t2i"):
        return "llamagen" if target.endswith("256") else "llamagen2"
    return _LANTERN_TARGETS.get(target.partition("-")[0])


def _lantern_lacks(config: DecodingConfig, target: str) -> Iterator[str]:
    rule = config.acceptance.neighbourhood
    shape = config.policy.to_mapping()
    sampling = config.sampling
    is_lumina = target.startswith("lumina")
    if _model_argument(target) is None:
        yield f"it has no target {target}"
    yield from _common_lacks(config)
    if rule.kind not in ("none", "additive", "multiplicative"):
        yield f"it has no neighbourhood {rule.kind}"
    if getattr(rule, "proximity", "l2") != "l2" or getattr(rule, "divergence", "tvd") != "tvd":
        yield "its neighbours are those of least l2 distance, within a total variation"
    if is_lumina and sampling is not None and sampling.top_p != 1:
        yield "it has no top-p for Lumina-mGPT"
    if config.is_vanilla:
        return
    if (
        is_lumina
        and sampling is not None
        and (sampling.temperature, sampling.top_k) != (1, _LUMINA_TOP_K)
    ):
        yield f"with a drafter, it samples Lumina-mGPT at temperature 1 and top-k {_LUMINA_TOP_K}"
    levels = _LUMINA_LEVELS if is_lumina else _LANTERN_LEVELS
    is_dynamic = config.policy.kind == "dynamic" and (
        shape["depth"],
        shape["width"],
        shape["nodes"],
    ) == (levels, _LANTERN_WIDTH, _LANTERN_NODES)
    is_static = config.policy.kind == "static" and shape.get("name") in _LANTERN_TREES
    if not (is_dynamic or (is_static and shape["children"] == "sampled")):
        kinds = f"dynamic ({levels} levels of {_LANTERN_WIDTH}, {_LANTERN_NODES} nodes)"
        yield f"its trees are {kinds} or {', '.join(_LANTERN_TREES)}, sampled"


def _lantern(config: DecodingConfig, target: str) -> str:
    rule = config.acceptance.neighbourhood
    sampling = config.sampling
    tree = config.policy
    words = [
        "python main.py generate_images",
        f"--model {_model_argument(target)} --model_path MODEL",
    ]
    words.append(
        "--model_type base" if config.is_vanilla else "--model_type eagle --drafter_path DRAFTER"
    )
    if tree.kind == "static":
        words[0] = f"USE_EXPERIMENTAL_FEATURES=1 {words[0]}"
        words.append(f"--static_tree --tree_choices {_LANTERN_TREES[tree.to_mapping()['name']]}")
    elif tree.kind == "dynamic" and target.startswith("lumina"):
        words.append("--eagle_version 2")
    if not rule.exact:
        # k counts the token itself, which the code's table of neighbours lacks
        values = rule.to_mapping()
        bound = values.get("delta", values.get("lambda"))
        words.append(f"--lantern --lantern_k {values['k'] - 1} --lantern_delta {bound:g}")
    if sampling is not None:
        words.append(
            f"--temperature {sampling.temperature:g} --top_k {sampling.top_k or _ALL_TOKENS}"
        )
        words.append(f"--top_p {sampling.top_p:g} --cfg {sampling.cfg:g}")
    return " \\\n    ".join(words)


def _eagle_lacks(config: DecodingConfig, target: str) -> Iterator[str]:
    yield from _common_lacks(config)
    if not config.acceptance.neighbourhood.exact:
        yield f"its acceptance is exact, here {config.acceptance.neighbourhood.kind}"
    if config.policy.kind != "dynamic":
        yield f"its trees are dynamic, here {config.policy.kind}"


def _eagle(config: DecodingConfig, target: str) -> str:
    # its depth counts the levels below the first, its total the root as well
    tree = config.policy.to_mapping()
    keys = {"use_eagle3": config.drafter.kind == "eagle3", "total_token": tree["nodes"] + 1}
    keys |= {"depth": tree["depth"] - 1, "top_k": tree["width"]}
    values = ", ".join(f"{key}={value}" for key, value in keys.items())
    return f"EaModel.from_pretrained({values}, ...)  # of language models, without guidance"


def _window_lacks(config: DecodingConfig) -> Iterator[str]:
    drafter = config.drafter.to_mapping()
    sampling = config.sampling
    yield from _common_lacks(config)
    if config.policy.kind != "chain":
        yield f"its window is a chain, here {config.policy.kind}"
    if drafter["redraw"] != "fresh":
        yield f"it draws rejected drafts afresh, here {drafter['redraw']}"
    if drafter["initialisation"] not in _SJD_INITIALISATIONS:
        yield (
            "it starts a position as a token that counts as certain, here "
            f"{drafter['initialisation']}"
        )
    if sampling is not None and (sampling.temperature, sampling.top_p) != (1, 1):
        yield "its scripts sample at temperature 1, without top-p"


def _sjd_target(target: str) -> str:
    """The key of `_SJD_SCRIPTS` that the target belongs to; "" if none."""
    return next((name for name in _SJD_SCRIPTS if target.startswith(name)), "")


def _sjd_lacks(config: DecodingConfig, target: str) -> Iterator[str]:
    if not _sjd_target(target):
        yield f"it has no script for the target {target}"
    yield from _window_lacks(config)
    if not config.acceptance.neighbourhood.exact:
        yield f"its acceptance is exact, here {config.acceptance.neighbourhood.kind}"


def _sjd(config: DecodingConfig, target: str) -> str:
    return _window(
        config,
        _SJD_SCRIPTS[_sjd_target(target)],
        _SJD_GUIDANCE.get(_sjd_target(target), "guidance_scale"),
    )


def _window(config: DecodingConfig, script: str, guidance: str) -> str:
    drafter = config.drafter.to_mapping()
    tree = config.policy.to_mapping()
    sampling = config.sampling
    values: dict[str, Any] = {  # its window counts the token in front of the drafts
        "max_num_new_tokens": tree["length"] + 1,
        "multi_token_init_scheme": repr(_SJD_INITIALISATIONS[drafter["initialisation"]]),
        "prefix_token_sampler_scheme": "'speculative_jacobi'",
    }
    if sampling is not None:
        values |= {"image_top_k": sampling.top_k or _ALL_TOKENS, guidance: f"{sampling.cfg:g}"}
    return "\n".join([f"# in {script}", *(f"{key} = {value}" for key, value in values.items())])


def _gsd_lacks(config: DecodingConfig, target: str) -> Iterator[str]:
    rule = config.acceptance.neighbourhood.to_mapping()
    yield from _window_lacks(config)
    if (rule["below"], rule["above"]) != _GSD_WINDOW:
        yield f"its groups span {_GSD_WINDOW[0]} ranks below and {_GSD_WINDOW[1]} above"
    if not target.startswith("lumina"):
        yield f"it has no target {target}"


def _gsd(config: DecodingConfig, target: str) -> str:
    rule = config.acceptance.neighbourhood.to_mapping()
    lines = [
        _window(config, "test_GSD.py", "guidance_scale"),
        "# in scheduler/jacobi_iteration_lumina_mgpt.py",
        f"p_thr = {rule['tolerance']:g}",
        (
            f"d_thr = ...  # {rule['radius']:g} between rows of the codebook here; there, between "
            "input embeddings"
        ),
    ]
    return "\n".join(lines)
