"""A trial as a folder to take away: its setting, a script that draws with it and measures it again,
versions, a model card with the flags of published code, and its weights if they are wanted.
"""

from __future__ import annotations

import os
import re
from collections.abc import Container, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.front.trial import Trial
from orchestrator.shown.published_code import published_code
from orchestrator.text import clean, markdown, markdown_block, markdown_code
from search_spaces.documents import write_document
from search_spaces.sweep_sections import BUILTIN

if TYPE_CHECKING:
    from workers.loading.models_yaml import Entry

# files of the folder
SETTING = "setting.yaml"
SCRIPT = "draw.py"
REQUIREMENTS = "requirements.txt"
PAGE = "README.md"
CAPTIONS = "captions.txt"
MODELS = "models.yaml"
WEIGHTS = "weights"
_PROJECT = "specfrontier"
_MIN_CAPTIONS = 16  # to measure the speed again
_MIN_BATCHES = 4
_REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9._!]+")
_HUB_FILE = re.compile(r"hf://([^/@]+/[^/@]+)")
_SCRIPT = '''"""Draws images with a setting; --measure compares its speed here with the sweep's."""

# {title}
import sys
from itertools import count
from pathlib import Path

from specfrontier import load_engine, remeasure_speedup

HERE = Path(__file__).parent
# builtin, a folder of weights, or FILE#ENTRY of a models.yaml; paths start at this folder
MODELS = {models!r}
BATCH = {batch}  # images at once; its speed was measured at this size
SAMPLING = {sampling!r}  # of vanilla decoding, with which its speed was compared


def main() -> None:
    captions = sys.argv[1:]
    is_measured = captions == ["--measure"]
    if not captions or (captions[0].startswith("-") and not is_measured):
        sys.exit("usage: python draw.py CAPTION... | --measure")
    try:
        models = MODELS if MODELS == "{builtin}" else str(HERE / Path(MODELS).expanduser())
        engine = load_engine(HERE / "{setting}", models, batch=BATCH)
        if is_measured:
            captions = (HERE / "{captions}").read_text("utf-8").splitlines()
            found = remeasure_speedup(engine, HERE / "{setting}", captions, SAMPLING)
            print(found)
            sys.exit(0 if found.holds else 1)
        images = engine.draw(captions)
    # a caption that the model cannot read, or weights that are not there
    except (ValueError, OSError) as error:
        sys.exit(f"error: {{error}}")
    free = (path for number in count() if not (path := Path(f"{{number:04d}}.png")).exists())
    for path, drawn in zip(free, images, strict=False):
        drawn.image.save(path)
        print(f"{{path}}: {{drawn!r}}")


if __name__ == "__main__":
    main()
'''


def export_files(trial: Trial, *, with_weights: bool = False) -> dict[str, bytes | Path]:
    """The folder's files by name: their bytes, or the files that they are copies of.

    The captions are left out if vanilla's images are not there. with_weights: include the target's
    files and the drafter's, except those of the built-in model, which are part of this project.

    Raises:
        ValueError, OSError: weights are missing, damaged, or not the sweep's.
    """
    from workers.loading.models_yaml import absolute_source, find_entry

    models = absolute_source(trial.models)
    files: dict[str, bytes | Path] = {}
    if with_weights:
        files = _weight_files(trial, find_entry(models))
    if files:
        models = MODELS
    script = _SCRIPT.format(
        title=clean(trial.title),
        models=models,
        batch=trial.batch,
        sampling=trial.sweep.identity.sampling.to_mapping(),
        setting=SETTING,
        captions=CAPTIONS,
        builtin=BUILTIN,
    )
    captions = _captions(trial)
    texts = {
        SETTING: trial.config_text,
        SCRIPT: script,
        REQUIREMENTS: _requirements(trial),
        PAGE: _page(trial, models_place(trial, files), has_captions=bool(captions)),
    }
    if captions:
        texts[CAPTIONS] = captions
    return {name: text.encode() for name, text in texts.items()} | files


def models_place(trial: Trial, files: Container[str]) -> str:
    """A sentence on where the script of an exported folder with these files has its models from."""
    if MODELS in files:
        return (
            f"The models are in {WEIGHTS}, by {MODELS}; the licences of their authors apply to "
            "them."
        )
    if trial.models == BUILTIN:
        version = trial.sweep.identity.versions.get(_PROJECT, "")
        return (
            "The models are the built-in ones, whose weights are part of "
            f"{f'{_PROJECT} {version}'.rstrip()}; this folder has no copy of them."
        )
    return f"The models are not in this folder; {SCRIPT} has their place."


def _weight_files(trial: Trial, entry: Entry) -> dict[str, bytes | Path]:
    """The files that the setting is loaded from, below `weights`, and a models.yaml that names them
    by their places there; nothing for the built-in model.
    """
    from workers.models.checkpoint_files import WeightsError, content_hash, weight_files

    drafter = trial.config.drafter.kind
    drafters = {kind: path for kind, path in entry.drafters.items() if kind == drafter}
    entry.check_files()
    used = entry.family.target_files | {f"drafters.{kind}": p for kind, p in drafters.items()}
    hashes = trial.sweep.identity.models
    differing = [key for key, path in used.items() if content_hash(path) != hashes.get(key)]
    if differing:
        raise WeightsError(
            f"{', '.join(differing)}: not the sweep's weights; restore the originals"
        )
    if trial.models == BUILTIN:
        return {}
    files: dict[str, bytes | Path] = {}

    def place(key: str, path: Path, parts: Mapping[str, str]) -> str:
        """Add the files of `parts` that are below a path; returns where the path is then."""
        is_folder = path.is_dir()
        base = path if is_folder else path.parent
        for part in parts.values():
            if Path(part).is_relative_to(path):
                for source in weight_files(part):
                    name = Path(os.path.relpath(source, base)).as_posix()
                    if name.startswith("../"):
                        raise WeightsError(f"{part}: names {source}, which is not below its folder")
                    files[f"{WEIGHTS}/{key}/{name}"] = source
        return f"{WEIGHTS}/{key}" if is_folder else f"{WEIGHTS}/{key}/{path.name}"

    own = entry.family.to_mapping()
    for key, path in entry.family.paths.items():
        if path is not None:
            own[key] = place(key, Path(path), entry.family.target_files)
    placed = {kind: place(kind, Path(path), {kind: path}) for kind, path in drafters.items()}
    section = {"family": entry.family.kind, **own, "dtype": entry.dtype, "drafters": placed}
    files[MODELS] = write_document({re.sub(r"[^\w.-]", "-", entry.name): section}).encode()
    return files


def _captions(trial: Trial) -> str:
    """Captions of the sweep, for a few batches, one a line; none if vanilla has not finished, or
    its images are missing.
    """
    count = max(_MIN_CAPTIONS, _MIN_BATCHES * trial.batch)
    try:
        captions = trial.sweep.captions()
    except ValueError:
        return ""
    texts = [clean(" ".join(caption.text.split())) for caption in captions]
    return "".join(f"{text}\n" for text in texts[:count])


def _requirements(trial: Trial) -> str:
    """What the sweep ran with, except for this project, which the page names. The local part of a
    version, such as +cpu, names a build that an index may lack.
    """
    versions = {
        name: text.partition("+")[0] for name, text in trial.sweep.identity.versions.items()
    }
    others = versions.keys() - {"python", "commit", _PROJECT}
    lines = [f"{name}=={version}" for name, version in versions.items() if name in others]
    pinned = [line for line in lines if _REQUIREMENT.fullmatch(line)]  # no option of pip
    return "\n".join([clean(f"# Python {versions.get('python', '')}").rstrip(), *pinned, ""])


def _page(trial: Trial, models: str, *, has_captions: bool) -> str:
    """A model card as the Hugging Face Hub reads it. models: see `models_place`. has_captions: the
    folder has captions.txt.
    """
    identity = trial.sweep.identity
    sweep = markdown(identity.name)
    target = markdown(identity.target)
    version = markdown(identity.versions.get(_PROJECT, ""))
    lossless = "is not lossless"
    if trial.is_lossless:
        lossless = "leaves the distribution of images as it is"
    captions = ""
    if not has_captions:
        captions = f" It reads captions from `{CAPTIONS}`, one a line, which is yours to write."
    plugins = [f" It needs the plugin {markdown_code(name)}." for name in trial.config.plugins]
    draw = f'pip install -r {REQUIREMENTS}\npython {SCRIPT} "a caption"\npython {SCRIPT} --measure'
    parts = [
        _metadata(trial),
        f"# {markdown(trial.title)}",
        f"Trial {trial.number} of the sweep {sweep} of {target}. The setting {lossless}.",
        _measured(trial),
        "## Draw images",
        f"Install {_PROJECT} {version} from its repository or a wheel of it; then:",
        markdown_block(draw, "sh"),
        f"{markdown(models)} The last line measures on your machine how much faster than vanilla "
        f"decoding the setting is, and compares it with the table.{captions} `specfrontier "
        f"generate --config {SETTING}` takes the setting, too.{''.join(plugins)}",
        *_drafter(trial),
        "## In published code",
        *_published(trial),
    ]
    return "\n\n".join(parts) + "\n"


def _metadata(trial: Trial) -> str:
    """The head of a model card, as YAML."""
    identity = trial.sweep.identity
    references = (_HUB_FILE.match(file) for file in identity.files.values())
    bases = dict.fromkeys(reference[1] for reference in references if reference)
    facts: dict[str, Any] = {
        "library_name": _PROJECT,
        "pipeline_tag": "text-to-image",
        "tags": ["speculative-decoding", trial.config.drafter.kind],
    }
    if bases:
        facts["base_model"] = list(bases)
    return f"---\n{write_document(facts)}---"


def _drafter(trial: Trial) -> list[str]:
    """What the drafter is, and how it was trained; nothing of a drafter without weights."""
    if not trial.config.drafter.has_weights:
        return []
    identity = trial.sweep.identity
    kind = trial.config.drafter.kind
    target = markdown(identity.target)
    key = f"drafters.{kind}"
    file = identity.files.get(key, "")
    facts = {"file": _public(file), "sha256, 16 digits": identity.models.get(key)}
    facts |= _training(file)
    rows = [
        f"| {markdown(name)} | {markdown(str(value))} |" for name, value in facts.items() if value
    ]
    purpose = "Predicts image tokens for parallel decoding"
    if trial.config.drafter.has_drafts:
        purpose = "Drafts image tokens for speculative decoding"
    return [
        f"## The {markdown(kind)} drafter",
        f"{purpose} of {target}, and of no other target.",
        "\n".join(["| | |", "|---|---|", *rows]),
    ]


def _measured(trial: Trial) -> str:
    """A table of the front's metrics, and of the accepted length."""
    identity = trial.sweep.identity
    names = dict.fromkeys(
        (*trial.objectives, *(name for name in ("mean_accepted_length",) if name in trial.metrics))
    )
    cells = ((name, str(trial.metrics[name]), trial.change(name)) for name in names)
    rows = [f"| {' | '.join(map(markdown, texts))} |" for texts in cells]
    where = (
        f"Speeds at batch {trial.batch} on "
        f"{markdown(identity.timing_device or 'an unknown device')}; "
    )
    captions = f"{identity.captions.get('count')} captions of {identity.captions.get('source')}"
    where += f"{markdown(captions)}. "
    return "\n".join(
        [
            "| metric | value | against vanilla |",
            "|---|---|---|",
            *rows,
            "",
            f"{where}± is one standard error.",
        ]
    )


def _published(trial: Trial) -> list[str]:
    found = published_code(trial.config, trial.sweep.identity.target)
    if not found:
        kind = markdown(trial.config.drafter.kind)
        return [f"None of LANTERN's, EAGLE's, SJD's and GSD's code has the drafter {kind}."]
    parts = []
    for code in found:
        if code.command:
            link = f"[{code.repository}](https://github.com/{code.repository}):"
            parts.append(f"{link}\n\n{markdown_block(code.command)}")
        else:
            parts.append(f"{code.repository} cannot express it: {markdown('; '.join(code.lacks))}.")
    if any(code.command for code in found):
        parts.append(
            "Where that code departs from its paper, its images and lengths differ from those "
            "measured here."
        )
    return parts


def _public(file: str) -> str:
    """A file's reference on the Hub, or its name: a card is read elsewhere."""
    return file if file.startswith("hf://") else Path(file).name


def _training(file: str) -> dict[str, Any]:
    """What the weights' own header says about their training, if `specfrontier train` wrote them;
    else what is not known.
    """
    from workers.loading.hub import on_this_machine
    from workers.models.own_files import read_config

    path = Path(on_this_machine(file))
    if not (path.is_file() or path.is_dir()):
        return {"training": "not known: the file was not there when this card was written"}
    try:
        recipe = read_config(path).get("recipe", {})
    except (ValueError, OSError):
        recipe = {}
    if not recipe:
        return {
            "training": (
                "not known: data, steps and licence are not in the file; its author may have them"
            )
        }
    return {
        f"training: {key}": value for key, value in recipe.items() if not isinstance(value, dict)
    }
