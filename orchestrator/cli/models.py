"""`specfrontier models`: write entries of models.yaml for published checkpoints, and fetch their
files from the Hub.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator import options as o
from orchestrator.cli.text import say
from orchestrator.errors import FAILED, WRONG_USAGE, CommandError, ends_with
from orchestrator.outputs import CONFIGS
from orchestrator.text import counted

if TYPE_CHECKING:
    from workers.models.families.catalogue import Family

INIT_EPILOG = """\b
Examples:
  specfrontier models init llamagen
  specfrontier models init janus --out janus.yaml
"""
PULL_EPILOG = """\b
Examples:
  specfrontier models pull models.yaml#llamagen-xl-stage1
  specfrontier models pull models.yaml#anole-7b --address auto
"""
_DRAFTERS = "files of eagle, eagle3, medusa, independent; `specfrontier train` makes them"
_INCEPTION = "inception: FILE for fid, pt_inception-2015-12-05-6726825d.pth of pytorch-fid"
_CLIP = "hf://openai/clip-vit-base-patch32"

models = typer.Typer(
    name="models",
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Entries of models.yaml, and files of the Hub.",
)


@models.command(epilog=INIT_EPILOG, short_help="Write a models.yaml for published checkpoints.")
@o.grouped
def init(
    family: Annotated[
        str,
        typer.Argument(metavar="FAMILY", help="llamagen, janus, ...; a wrong name lists them all."),
    ],
    out: str = o.option(
        "File to write.",
        "FILE",
        default="models.yaml",
        callback=o.output_file(CONFIGS, o.output_path),
    ),
) -> None:
    """Write a commented models.yaml with an entry for each published checkpoint of a family, with
    its files' places on the Hugging Face Hub. Nothing is downloaded, and no file is overwritten.
    """
    from pathlib import Path

    from workers.models.families.catalogue import FAMILIES

    with ends_with(WRONG_USAGE):
        kind = FAMILIES.all().lookup(family)
        if not kind.on_hub:
            known = ", ".join(name for name, other in FAMILIES.all().items() if other.on_hub)
            raise ValueError(
                f"{family}: no published checkpoint on the Hub is known; give one of {known}"
            )
        path = Path(out)
        if path.exists():
            raise ValueError(f"{out}: exists; give another --out")
        path.write_text("\n".join(_lines(kind)), "utf-8")
    entries = ", ".join(kind.on_hub)
    first = next(iter(kind.on_hub))
    typer.echo(
        f"{out}: {entries}\nfetch the files of one: specfrontier models pull {quote(out)}#{first}"
    )


def _lines(family: type[Family]) -> Iterator[str]:
    """The file: keys with values, then the optional ones as comments, each with what it is."""
    fields = family.fields()
    for name, keys in family.on_hub.items():
        yield f"{name}:"
        yield f"  family: {family.kind}"
        for key, field in fields.items():
            default = None if field.required else field.default
            yield _key_line(key, keys.get(key), field.about, default)
        yield "  dtype: auto  # bfloat16 on a GPU, float32 on a CPU"
        yield _key_line("drafters", _flow(keys.get("drafters", {})), _DRAFTERS)
        scores = {"clip": _CLIP}
        if "text" in fields and "text" not in keys:
            scores = {}  # class names are no captions
        yield _key_line("metrics", _flow(scores), _INCEPTION)
        yield ""


def _key_line(key: str, value: object, about: str, default: object = None) -> str:
    """A line for a key of an entry: with its value; without one as a comment, with the default."""
    if value not in (None, ""):
        return f"  {key}: {value}  # {about}"
    if default not in (None, ""):
        return f"  # {key}: {default}  # {about}"
    return f"  # {key}: {about}"


def _flow(given: Mapping[str, str]) -> str:
    """A mapping in one line of YAML; "" if it is empty."""
    if not given:
        return ""
    return "{" + ", ".join(f"{key}: {value}" for key, value in given.items()) + "}"


@models.command(epilog=PULL_EPILOG, short_help="Fetch an entry's files from the Hugging Face Hub.")
@o.grouped
def pull(
    source: Annotated[
        str, typer.Argument(metavar="MODELS", help="FILE or FILE#ENTRY of a models.yaml.")
    ],
    address: o.Address = None,
) -> None:
    """Fetch the files that an entry of models.yaml takes from the Hugging Face Hub (hf://...) into
    its cache, on this machine or, with --address, on every node of a Ray cluster.

    HF_HOME, HF_TOKEN, HF_ENDPOINT and the other variables of huggingface_hub apply, on each node
    those that its Ray was started with. What the cache has is not fetched again; of a branch, the
    newest commit is.
    """
    from workers.loading.models_yaml import find_entry

    with ends_with(WRONG_USAGE):
        entry = find_entry(source)
    if not entry.hub:
        raise CommandError(
            f"{source}: entry {entry.name} has no path that starts with hf://", WRONG_USAGE
        )
    pull_files(entry.hub, address)


def pull_files(references: Mapping[str, str], address: str | None) -> None:
    """Fetch the files of the Hub that an entry names, by key; says on standard error where they
    are. A Ray client, whose machine is not a node, fetches them for itself too.

    Raises:
        CommandError: one cannot be fetched, on any machine (1); no such cluster.
    """
    from orchestrator.cluster.tasks import PoolError

    with ends_with(FAILED, PoolError), ends_with(FAILED):
        from orchestrator.cluster.cluster import resolve_address

        if address is None or resolve_address(address).is_client:
            _pull_here(references)
        if address is None:
            return
        from orchestrator.cluster.pull import pull_on_nodes

        failed = dict[str, str]()
        for done in pull_on_nodes(address, sorted(set(references.values()))):
            say(f"{done.node}: {done.reference}: {done.problem or done.path}")
            if done.problem:
                failed[done.reference] = done.problem
        if failed:
            raise CommandError(
                f"{counted(len(failed), 'file')} not fetched on every node; run it again", FAILED
            )


def _pull_here(references: Mapping[str, str]) -> None:
    from workers.loading.hub import HubFile

    for key, reference in references.items():
        say(f"{key}: {HubFile.parse(reference).pull()}")


def pull_models(config: Any, address: str | None, *, dry_run: bool) -> list[str]:
    """Fetch what a sweep's models take from the Hub, if anything, and no other file is missing on
    this machine. Raises the errors of `pull_files`.

    dry_run: fetch nothing. Returns the keys and references of what this machine then lacks.
    """
    from orchestrator.launch.inspection import models_entry
    from workers.loading.hub import local_path
    from workers.metrics.registry import weight_keys

    with ends_with(WRONG_USAGE), config.locate_errors():
        entry = models_entry(config)
        if entry.hub and address is None:
            entry.check_files(weight_keys(config.requested_metrics), on_hub=False)
    if entry.hub and not dry_run:
        pull_files(entry.hub, address)
    return [
        f"{key} ({path})" for key, path in entry.hub.items() if dry_run and local_path(path) == path
    ]
