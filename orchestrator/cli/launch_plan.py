"""What `specfrontier launch --check` prints: the sweep as it would run."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from orchestrator.cli.text import terminal_width
from orchestrator.errors import explain
from orchestrator.store.names import VANILLA
from orchestrator.text import counted

if TYPE_CHECKING:
    from orchestrator.launch.earlier import Earlier
    from search_spaces.sweep import SweepConfig
    from search_spaces.sweep_sections import Reference
    from workers.data.storage import Storage

_LABEL_WIDTH, _MAX_NAME_WIDTH, _MAX_WIDTH = 12, 46, 120  # columns


def describe_plan(
    config: SweepConfig,
    storage: Storage,
    earlier: Earlier | None = None,
    missing_files: Sequence[str] = (),
    notes: Collection[str] = (),
) -> str:
    """The sweep as it would run, with all defaults: a line for each part of the sweep, and one for
    each parameter that is searched. missing_files: files of the models that the launch would fetch.
    notes: on the models' files.
    """
    head = f"{config.name}: {config.about}".rstrip(": ")
    pull = (
        f"would fetch {', '.join(missing_files)}; what depends on them was not checked"
        if missing_files
        else ""
    )
    parts = [("pull", pull), *_earlier(config, storage, earlier), *_parts(config, storage)]
    parts += [("note", text) for text in notes]
    return "\n".join([_fill(head), *(_line(label, text) for label, text in parts if text)])


def _earlier(
    config: SweepConfig, storage: Storage, earlier: Earlier | None
) -> Iterator[tuple[str, str]]:
    """What is taken over from each earlier sweep."""
    if earlier is None:
        return
    from orchestrator.store.files import IDENTITY
    from workers.data.captions import captions_hash, read_captions

    read = read_captions(**config.captions.to_mapping())
    captions = {"hash": captions_hash(read), "count": len(read)}
    facts = None if storage.exists(IDENTITY) else {"captions": captions}
    yield from (("from", text) for text in earlier.describe(config, captions, facts))
    fronts = f"{counted(len(earlier.front), 'trial')} of their fronts"
    yield "", f"{fronts}, first: the budgets of trials and images are larger by them"


def _parts(config: SweepConfig, storage: Storage) -> Iterator[tuple[str, str]]:
    from workers.data.shards import session_images
    from workers.metrics.registry import uses_timings

    quality, timing, search, size = (
        config.quality,
        config.timing,
        config.search,
        config.space.size(),
    )
    captions, reference = config.captions, config.reference
    yield "store", storage.display_name
    yield from _resume(config, storage)
    yield "models", str(config.models)
    yield "captions", f"{captions.count} of {captions.source}, seed {captions.seed}"
    yield "reference", describe_reference(reference)
    sampling = {} if config.sampling is None else config.sampling.to_mapping()
    yield (
        "sampling",
        ", ".join(f"{key} {value:g}" for key, value in sampling.items()) or "the target's own",
    )
    first = dict.fromkeys((VANILLA, *(entry.label for entry in config.enqueue)))
    yield "first", ", ".join(first)
    yield (
        "search",
        f"{search.sampler if config.space.source else 'none'}, {search.parallel} trials in flight",
    )
    yield "space", counted(size, "point") if size and config.space.source else ""
    searched = {_searched_key(name): domain for name, domain in config.space.parameters().items()}
    column = min(max((len(name) for name, _ in searched), default=0), _MAX_NAME_WIDTH)
    for (name, condition), domain in searched.items():
        yield (
            f"  {name:<{column}}",
            (" | ".join(domain) if isinstance(domain, tuple) else str(domain)) + condition,
        )
    limits = {unit: getattr(config.budget, unit) for unit in ("trials", "images", "hours")}
    budget = ", ".join(f"{limit:g} {unit}" for unit, limit in limits.items() if limit is not None)
    if (plateau := config.budget.plateau) is not None:
        last = f"the last {counted(config.budget.patience or 0, 'trial')}"
        budget = (
            f"at most {budget}; less once {last} add less than {100 * plateau:g} % to the front"
        )
    most = size + len(first) if size is not None else config.budget.trials
    yield (
        "budget",
        f"{budget}; there are at most {most} settings" if most < config.budget.trials else budget,
    )
    images = captions.count * quality.samples
    total = f"{images} images a trial, at most {images * config.budget.trials:,} in all"
    shards = f"{captions.count} captions x {quality.samples}, batch {quality.batch}"
    yield "quality", f"{shards}: {total}{_on(quality.nodes)}"
    timed = session_images(timing.images, timing.batches)
    pairs = (
        f"each shape in turn with vanilla, {timed} captions x at most {timing.repetitions} in a "
        f"session, batch {' and '.join(map(str, timing.batches))}{_on(timing.nodes)}"
    )
    yield (
        "timing",
        (
            pairs
            if uses_timings(config.requested_metrics)
            else "none: no metric of the sweep needs it"
        ),
    )
    if racing := config.racing:
        rungs = ", ".join(map(str, racing.rungs))
        rate = racing.error_rate
        rule = (
            "stops dominated trials"
            if rate is None
            else f"stops significantly worse trials, error rate {rate:g}"
        )
        yield "racing", f"at {rungs} captions; {rule}"
    yield (
        "objectives",
        ", ".join(
            f"{o.metric} ({o.direction})" if o.direction else o.metric for o in config.objectives
        ),
    )
    yield "constraints", ", ".join(constraint.text for constraint in config.constraints)
    yield (
        "metrics",
        "all that are available" if config.metrics is None else ", ".join(config.metrics),
    )
    yield "seed", str(config.seed)


def describe_reference(reference: Reference) -> str:
    """`80 images of photos; left out: 70 .tif`."""
    from search_spaces.sweep_sections import NO_REFERENCE
    from workers.data.reference import count_images

    source = reference.source
    if source == NO_REFERENCE:
        return "none"
    try:
        count, left_out = count_images(source, count=reference.count)
    except (ValueError, OSError) as error:  # it may be on the cluster's machines only
        return (
            f"at most {counted(reference.count, 'image')} of {source}; not checked: "
            f"{explain(error)}"
        )
    return f"{counted(count, 'image')} of {source}" + (
        f"; left out: {left_out}" if left_out else ""
    )


def _searched_key(name: str) -> tuple[str, str]:
    """The key that a parameter sets, and where it does: of `tree=chain.length`, `tree.length` and `
    (tree chain)`.
    """
    parts = [part.partition("=") for part in name.replace("space", "branch", 1).split(".")]
    key = ".".join(tag for tag, is_kind, _ in parts if not (is_kind and tag == "branch"))
    kinds = ", ".join(f"{tag} {kind}" for tag, is_kind, kind in parts if is_kind)
    return key, f" ({kinds})" if kinds else ""


def _on(nodes: Mapping[str, str] | None) -> str:
    from orchestrator.cluster.placement import describe_labels

    return f", on nodes with {describe_labels(nodes)}" if nodes else ""


def _resume(config: SweepConfig, storage: Storage) -> Iterator[tuple[str, str]]:
    """What is left of a sweep that exists, and the process that runs it now."""
    from orchestrator.store.files import DRIVER_LOCK, SHARDS, SWEEP, read_trials
    from orchestrator.store.locks import read_holder

    if not storage.exists(SWEEP):
        return
    records = read_trials(storage)
    states = [record.state for record in records]
    named = (
        f"{states.count(state)} {state}"
        for state in ("complete", "stopped", "failed")
        if state in states
    )
    finished = f"{counted(len(records), 'trial')} finished" + (
        f" ({', '.join(named)})" if records else ""
    )
    left = max(0, config.budget.trials - len(records))
    more = (
        f"{left} more of the budget"
        if left
        else "no other: the budget of trials is spent (--trials raises it)"
    )
    recorded = {name for record in records for name in record.shards}
    unfinished = sum(f"{SHARDS}/{name}" not in recorded for name in storage.names(SHARDS))
    kept = (
        f"; {counted(unfinished, 'shard')} of unfinished trials will not be generated again"
        if unfinished
        else ""
    )
    yield "resume", f"{finished}; --resume keeps them and runs {more}{kept}"
    if (driver := read_holder(storage, DRIVER_LOCK)) and driver.is_alive:
        yield "running", f"{driver.name}: a launch is refused until it ends"


def _line(label: str, text: str) -> str:
    return _fill(text, f"  {label:<{_LABEL_WIDTH - 1}} ")


def _fill(text: str, head: str = "") -> str:
    """Text after a head, in lines that fit a terminal."""
    width = min(terminal_width(), _MAX_WIDTH) if sys.stdout.isatty() else _MAX_WIDTH
    return textwrap.fill(
        text, width, initial_indent=head, subsequent_indent=" " * len(head), break_on_hyphens=False
    )
