"""A trial as a folder to take away: its setting, a script that draws with it, versions, the flags
of published code, and a model card of its drafter.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from orchestrator.front.trial import Trial
from orchestrator.shown.published_code import published_code
from orchestrator.text import clean, markdown, markdown_block, markdown_code
from search_spaces.documents import write_document
from search_spaces.sweep_sections import BUILTIN

# files of the folder
SETTING = "setting.yaml"
SCRIPT = "draw.py"
REQUIREMENTS = "requirements.txt"
PAGE = "README.md"
CARD = "drafter.md"
_PROJECT = "specfrontier"
_REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9._!]+")
_SCRIPT = '''"""Draws images with a setting."""

# {title}
import sys
from itertools import count
from pathlib import Path

from specfrontier import load_engine

HERE = Path(__file__).parent
# builtin, a folder of weights, or FILE#ENTRY of a models.yaml; paths start at this folder
MODELS = {models!r}
BATCH = {batch}  # images at once; its speed was measured at this size


def main() -> None:
    captions = sys.argv[1:]
    if not captions or captions[0].startswith("-"):
        sys.exit("usage: python draw.py CAPTION...")
    try:
        models = MODELS if MODELS == "{builtin}" else str(HERE / Path(MODELS).expanduser())
        images = load_engine(HERE / "{setting}", models, batch=BATCH).draw(captions)
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


def export_files(trial: Trial) -> dict[str, bytes]:
    """The folder's files by name. Vanilla, and drafters without weights, have no model card."""
    from workers.loading.models_yaml import absolute_source

    models = absolute_source(trial.models)
    script = _SCRIPT.format(
        title=clean(trial.title),
        models=models,
        batch=trial.batch,
        setting=SETTING,
        builtin=BUILTIN,
    )
    files = {
        SETTING: trial.config_text,
        SCRIPT: script,
        REQUIREMENTS: _requirements(trial),
        PAGE: _page(trial),
    }
    if trial.config.drafter.has_weights:
        files[CARD] = _card(trial)
    return {name: text.encode() for name, text in files.items()}


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


def _page(trial: Trial) -> str:
    identity = trial.sweep.identity
    sweep = markdown(identity.name)
    target = markdown(identity.target)
    version = markdown(identity.versions.get(_PROJECT, ""))
    lossless = "is not lossless"
    if trial.is_lossless:
        lossless = "leaves the distribution of images as it is"
    parts = [
        f"# {markdown(trial.title)}",
        f"Trial {trial.number} of the sweep {sweep} of {target}. The setting {lossless}.",
        _measured(trial),
        "## Draw images",
        f"Install {_PROJECT} {version} from its repository or a wheel of it; then:",
        markdown_block(f'pip install -r {REQUIREMENTS}\npython {SCRIPT} "a caption"', "sh"),
        f"`{SCRIPT}` names the models; `specfrontier generate --config {SETTING}` takes the "
        "setting, too."
        + "".join(
            f" It needs the plugin {markdown_code(module)}." for module in trial.config.plugins
        ),
        "## In published code",
        *_published(trial),
    ]
    return "\n\n".join(parts) + "\n"


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


def _card(trial: Trial) -> str:
    """A model card as the Hugging Face Hub reads it."""
    identity = trial.sweep.identity
    kind = trial.config.drafter.kind
    target = markdown(identity.target)
    key = f"drafters.{kind}"
    file = identity.files.get(key, "")
    facts = {
        "drafter": kind,
        "target": identity.target,
        "file": _public(file),
        "sha256, 16 digits": identity.models.get(key),
    }
    head = f"---\n{write_document({'tags': ['speculative-decoding', 'text-to-image', kind]})}---"
    facts |= _training(file)
    rows = [
        f"| {markdown(name)} | {markdown(str(value))} |" for name, value in facts.items() if value
    ]
    table = "\n".join(["| | |", "|---|---|", *rows])
    return (
        "\n\n".join(
            [
                head,
                f"# {markdown(kind)} drafter of {target}",
                (
                    f"Drafts image tokens for speculative decoding of {target}, and of no other "
                    "target."
                ),
                table,
                "## Measured",
                f"With the setting {markdown(trial.setting)}:\n\n{_measured(trial)}",
            ]
        )
        + "\n"
    )


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
