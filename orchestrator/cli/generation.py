"""Generates images from captions with one decoding config; writes contact sheet, heat map,
statistics and config.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from orchestrator.cli.gallery import SUMMARIES, Gallery, remove_previous
from orchestrator.cli.query_options import GenerationOptions
from orchestrator.errors import FAILED, WRONG_USAGE, ends_with, in_memory
from orchestrator.images import DEFAULT_BATCH, ImageEngine
from orchestrator.options import find_models, pick_device
from orchestrator.shown.status import drafter_warning, is_hardly_accepted
from orchestrator.store import config_file
from orchestrator.store.names import VANILLA, format_number
from orchestrator.text import counted
from search_spaces.trial import DecodingConfig, Sampling
from workers.data.captions import Caption
from workers.data.prompt_benchmarks import PromptSet
from workers.decoding.engine import Engine
from workers.decoding.kernels import implementation
from workers.decoding.state import Request
from workers.decoding.token_check import TokenCheck
from workers.loading.models import Models
from workers.loading.models_yaml import load_entry
from workers.metrics.estimate import measured, ratio_estimate
from workers.models.checkpoint_files import collect_notes
from workers.runtime.device import device_name, this_device, versions

_WHILE_LOADING = (
    "while loading the models; free some memory, use a larger device, or set dtype: bfloat16"
)


def generate_images(
    mapping: Mapping[str, Any],
    captions: Sequence[Caption],
    setting: config_file.Setting,
    preset: str | None,
    options: GenerationOptions,
    prompts: PromptSet | None = None,
) -> tuple[str, str | None]:
    """Generate all images and write the output folder; returns the text to print, and the false
    claim to be lossless that `--verify` has found.

    Args:
        mapping: A `DecodingConfig` as a mapping; missing sampling keys have the target's defaults.
        captions: One or more; their ids are not used.
        setting: Where the config is from.
        preset: The name that the user gave, for the statistics.
        options: How images are generated, and where they go.
        prompts: The captions again, if the images have the layout of a benchmark.

    Raises:
        CommandError: config, models, captions or folder are invalid (2); weights or decoding fail
            (1); interrupt (130).
    """
    folder = Path(options.out)
    batch = options.batch or setting.batch or DEFAULT_BATCH
    entry = find_models(options.models, setting.models)
    with in_memory(_WHILE_LOADING):
        with ends_with(FAILED), collect_notes() as notes:
            models = load_entry(entry, pick_device(options.device))
        with ends_with(WRONG_USAGE):
            config = DecodingConfig.from_mapping(mapping, models.target.sampling)
            groups = [caption.group for caption in captions]
            make = partial(Gallery, prompts=prompts, groups=groups)
            gallery = make(_engine(models, config, options.seed, batch), folder)
            requests = gallery.engine.requests([each.text for each in captions], options.samples)
    replaced = _remove_previous_run(folder)
    baseline = _vanilla(config, setting, models.target.sampling)
    vanilla: Gallery | None = None
    with in_memory(f"at batch {batch}; try --batch {max(1, batch // 2)}"):
        if options.against is not None:
            vanilla = make(_engine(models, baseline, options.seed, batch), folder / VANILLA)
        seconds, timings = _generate(gallery, vanilla, requests)
    checked = _check(gallery) if options.verify else None
    warnings = [*setting.notes, *notes, *_warnings(gallery, entry.files)]
    against = None if vanilla is None else _speedup(timings) | {"folder": str(vanilla.folder)}
    header = _header(mapping, gallery.engine.decoder, models, setting, len(requests)) | {
        "preset": preset,
        "lossless": config.is_lossless(baseline.sampling, models.target.grid.cols),
        "token_check": checked and asdict(checked) | {"passed": checked.passed},
        "samples": options.samples,
        "warnings": warnings,
        "against": against,
    }
    with ends_with(FAILED):
        statistics = gallery.write(header, seconds, setting.comments_for(config.digest()))
        if vanilla is not None:
            _write_vanilla(vanilla, header, timings)
    as_json = json.dumps(statistics, indent=2, ensure_ascii=False)
    text = as_json if options.as_json else _summary(statistics, folder, replaced, checked)
    return text, _false_claim(checked, config, models.target.grid.cols)


def _generate(
    gallery: Gallery, vanilla: Gallery | None, requests: Sequence[Request]
) -> tuple[float, list[dict[str, Any]]]:
    """Generate all images; returns their wall time in seconds, and the timings if vanilla's images
    are generated, too. Raises as `Gallery.generate`.
    """
    if vanilla is None:
        return gallery.generate(requests), []
    timings = gallery.generate_beside(vanilla, requests)
    return sum(_by_setting(timings, "wall")[1]), timings


def _check(gallery: Gallery) -> TokenCheck:
    """Whether the tokens of all images are the target's own (see `ImageEngine.check`)."""
    with in_memory("while the target reads whole images; use a larger device"):
        return gallery.engine.check(list(gallery.images.values()))


def _engine(models: Models, config: DecodingConfig, seed: int, batch: int) -> ImageEngine:
    models.target.require_images()
    return ImageEngine(models.engine(config, seed=seed, batch_size=batch))


@ends_with(WRONG_USAGE)
def _remove_previous_run(folder: Path) -> int:
    """Remove the previous run's files, and those of its vanilla; returns how many pictures there
    were. CommandError if one cannot be removed.
    """
    replaced = remove_previous(folder) + remove_previous(folder / VANILLA, *SUMMARIES)
    with suppress(OSError):  # it has files of others
        (folder / VANILLA).rmdir()
    return replaced


def _write_vanilla(
    vanilla: Gallery, header: Mapping[str, Any], timings: Sequence[Mapping[str, Any]]
) -> None:
    """Write vanilla's summaries. header: the setting's, whose facts of the setting do not apply."""
    own: dict[str, Any] = {
        "preset": None,
        "origin": "",
        "measured": None,
        "against": None,
        "warnings": [],
        "lossless": True,
        "token_check": None,
    }
    vanilla.write({**header, **own}, sum(_by_setting(timings, "wall")[0]))


def _speedup(timings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The measured speed-up with its standard error (None for a single batch), and vanilla's
    seconds per image.
    """
    vanilla, own = map(torch.tensor, _by_setting(timings, "seconds"))
    error = None
    if len(own) > 1:
        error = ratio_estimate(vanilla, own, torch.arange(len(own))).error
    latency = 2 * float(vanilla.sum()) / sum(row["batch"] for row in timings)
    return {
        "speedup": float(vanilla.sum() / own.sum()),
        "error": error,
        "latency_vanilla": latency,
    }


def _by_setting(timings: Sequence[Mapping[str, Any]], column: str) -> list[list[float]]:
    """A column of the timings of vanilla and of the setting, by batch."""
    return [
        [float(row[column]) for row in timings if row["setting"] == side] for side in ("0", "1")
    ]


def _vanilla(
    config: DecodingConfig, setting: config_file.Setting, sampling: Sampling
) -> DecodingConfig:
    """What `config` is compared with: the sweep's vanilla, unless its sampling was changed since;
    else vanilla with the config's sampling. sampling: the target's defaults.
    """
    stated = DecodingConfig.from_mapping(setting.mapping, sampling)
    if setting.baseline is not None and config.sampling == stated.sampling:
        return setting.baseline
    return DecodingConfig(sampling=config.sampling)


def _header(
    mapping: Mapping[str, Any],
    engine: Engine,
    models: Models,
    setting: config_file.Setting,
    images: int,
) -> dict[str, Any]:
    """What the statistics say of the run as a whole. `measured`: the speed-up that a sweep measured
    of this config, and why it is not that of this run.
    """
    batch = min(engine.batch_size, images)
    promised = None
    if setting.speed is not None:
        files = setting.differing_files(models.hashes)
        devices = [str(this_device(engine.device)), device_name(engine.device)]
        reasons = setting.speed.differences(engine.config.digest(), batch, devices, files)
        promised = asdict(setting.speed) | {
            "differences": reasons,
            "text": setting.speed.describe(reasons),
        }
    return {
        "versions": versions(),
        "target": engine.target.name,
        "weights": models.hashes,
        "device": str(engine.device),
        "threads": torch.get_num_threads(),
        "cuda_graphs": engine.uses_graphs,
        "kernels": implementation(engine.device.type),
        "origin": setting.origin,
        "default_sampling": [
            key for key in Sampling.fields() if key not in (mapping.get("sampling") or {})
        ],
        "seed": engine.seed,
        "batch": batch,
        "measured": promised,
    }


def _warnings(gallery: Gallery, files: Mapping[str, str]) -> list[str]:
    """A sentence if hardly anything is accepted of a drafter with weights. files: of the models, by
    key.
    """
    images = [drawn.statistics for drawn in gallery.images.values()]
    tokens = sum(int(image.emitted.sum()) for image in images)
    passes = sum(image.passes for image in images)
    drafter = gallery.engine.config.drafter.kind
    file = files.get(f"drafters.{drafter}")
    if file is None or not is_hardly_accepted(tokens, passes):
        return []
    return [drafter_warning(drafter, file, tokens, passes)]


def _describe_check(found: TokenCheck) -> str:
    """What `--verify` found, in a sentence."""
    numbers = f"p = {found.p_value:.2g} over {found.tokens:,} tokens"
    if found.impossible:
        numbers += f", {counted(found.impossible, 'token')} of which the target does not allow"
    if not found.passed:
        return f"the tokens are not the target's own: {numbers}"
    share = f"{100 * found.detectable:.2g} %"
    return (
        f"the tokens are the target's own, as far as this check sees: {numbers}; it notices at "
        f"best a shift of {share} of them"
    )


def _false_claim(found: TokenCheck | None, config: DecodingConfig, cols: int) -> str | None:
    """Why a run has failed: its setting claims to be lossless for its sampling, and is not."""
    claims = config.is_lossless(config.sampling, cols)
    if found is None or found.passed or not claims:
        return None
    return (
        "the setting claims to be lossless, but its tokens are not samples of the target's "
        f"distribution (p = {found.p_value:.2g}): a rule, drafter or target of yours states what "
        "it does not do, or this is an error here"
    )


def _summary(
    statistics: dict[str, Any], folder: Path, replaced: int, checked: TokenCheck | None
) -> str:
    """The setting, its speed and its passes of the target, in words, and the files. replaced:
    images of the last run. checked: what `--verify` found.
    """
    means = statistics["overall"]
    config = statistics["config"]
    images = means["images"]
    against = statistics["against"]
    warm_up = ", warm-up included" if against is None else ""
    speed = f"{1 / means['latency']:.3g} images/s at batch {statistics['batch']}"
    lines = [
        f"{_describe_setting(statistics)}, target {statistics['target']} on {statistics['device']}"
    ]
    if statistics["origin"]:
        lines.append(statistics["origin"])
    lines += [
        _describe_sampling(config["sampling"], statistics["default_sampling"]),
        f"{counted(images, 'image')} in {means['wall_seconds']:.2f} s{warm_up}: {speed}",
        _describe_passes(means, is_vanilla=DecodingConfig.from_mapping(config).is_vanilla),
    ]
    if statistics["measured"] is not None:
        lines.append(statistics["measured"]["text"])
    if against is not None:
        ratio = measured(against["speedup"], against["error"])
        if against["error"] is None:
            ratio += ", of one batch, so without an error"
        lines.append(f"speed-up against vanilla in this run: {ratio}; images: {against['folder']}")
    if checked is not None:
        lines.append(_describe_check(checked))
    lines += [f"note: {text}" for text in statistics["warnings"]]
    lines.append(f"{folder / 'contact_sheet.png'} (and heatmap.png, statistics.json, config.yaml)")
    if replaced:
        lines.append(
            f"replaced {counted(replaced, 'image')} of the last run; --out keeps runs apart"
        )
    return "\n".join(lines)


def _describe_setting(statistics: Mapping[str, Any]) -> str:
    """The setting's name, and, except for vanilla, whether it is lossless."""
    name: str = statistics["setting"]
    if DecodingConfig.from_mapping(statistics["config"]).is_vanilla:
        return name
    return f"{name}, lossless" if statistics["lossless"] else f"{name}, not lossless"


def _describe_passes(means: Mapping[str, Any], *, is_vanilla: bool) -> str:
    """The target's passes, and the drafter's share of the time."""
    passes = means["target_passes"] / means["images"]
    length = means["mean_accepted_length"]
    text = f"{passes:.1f} target passes per image, each for {length:.2f} tokens"
    if is_vanilla:
        return text
    seconds = means["seconds"]
    share = 100 * seconds["drafter"] / sum(seconds.values())
    return f"{text} (vanilla: 1); {share:.0f} % of the time went into drafting"


def _describe_sampling(sampling: Mapping[str, Any], defaults: Sequence[str]) -> str:
    """`sampling: guidance (cfg) 1.5, temperature 1, top_k 0, top_p 1`, and which of them are the
    target's defaults.
    """
    names = {"cfg": "guidance (cfg)"}
    values = {name: sampling[name] for name in ("cfg", "temperature", "top_k", "top_p")}
    # those of a dynamic temperature
    values |= {name: value for name, value in sampling.items() if name not in values}
    parts = []
    for name, value in values.items():
        shown = value if isinstance(value, str) else format_number(value, 6)
        parts.append(f"{names.get(name, name)} {shown}")
    text = ", ".join(parts)
    if not defaults:
        return f"sampling: {text}"
    which = "all"
    if len(defaults) < len(values):
        which = ", ".join(name for name in values if name in defaults)
    return f"sampling: {text} ({which} by the target's default; a sweep's may differ, see --from)"
