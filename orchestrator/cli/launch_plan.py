"""What `specfrontier launch --check` prints: the sweep as it would run."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from orchestrator.cli.text import terminal_width
from orchestrator.errors import explain
from orchestrator.store.names import VANILLA
from orchestrator.text import counted, describe_duration

if TYPE_CHECKING:
    from orchestrator.launch.earlier import Earlier
    from orchestrator.launch.inspection import Inspection
    from search_spaces.sweep import SweepConfig
    from search_spaces.sweep_sections import Reference
    from workers.data.storage import Storage

_LABEL_WIDTH = 12  # columns
_MAX_NAME_WIDTH = 46  # columns
_MAX_WIDTH = 120  # columns


def describe_plan(inspection: Inspection) -> str:
    """The sweep as it would run, with all defaults: a line for each part of the sweep, and one for
    each parameter that is searched; files of the models that the launch would fetch, and notes on
    the models' files.
    """
    sweep = inspection.sweep
    storage = inspection.request.storage
    head = f"{sweep.name}: {sweep.about}".rstrip(": ")
    parts = [("pull", _missing(inspection)), *_earlier(inspection), *_parts(sweep, storage)]
    parts += [("note", text) for text in inspection.notes]
    return "\n".join([_fill(head), *(_line(label, text) for label, text in parts if text)])


def _missing(inspection: Inspection) -> str:
    """The files of the models that the launch would fetch; "" if there are none."""
    missing = inspection.fetch_files()
    if not missing:
        return ""
    return f"would fetch {', '.join(missing)}; what depends on them was not checked"


def _earlier(inspection: Inspection) -> Iterator[tuple[str, str]]:
    """What is taken over from each earlier sweep."""
    earlier = inspection.request.earlier
    if earlier is None:
        return
    from workers.data.captions import captions_hash

    captions = {"hash": captions_hash(inspection.captions), "count": len(inspection.captions)}
    facts = {"captions": captions} if inspection.identity is None else None
    for text in earlier.describe(inspection.sweep, captions, facts):
        yield "from", text
    if earlier.front:
        fronts = f"{counted(len(earlier.front), 'trial')} of their fronts"
        yield "", f"{fronts}, first: the budgets of trials and images are larger by them"
    if facts is not None:
        yield "duration", _duration(earlier, inspection.sweep, captions)


def _duration(earlier: Earlier, sweep: SweepConfig, captions: Mapping[str, Any]) -> str:
    """How long the images take that are not copied, at the earlier sweeps' pace; "" if no pace is
    known.
    """
    pace = earlier.seconds_per_image
    if pace is None:
        return ""
    each = captions["count"] * sweep.quality.samples
    images = min(each * sweep.budget.trials, sweep.budget.images or each * sweep.budget.trials)
    copied = sum(count for _, _, count in earlier.copies(sweep, captions))
    hours = describe_duration(pace * max(0, images - copied))
    names = " and ".join(source.name for source in earlier.sources)
    return (
        f"at most {hours} of worker time for {images - copied:,} images that are not copied, at "
        f"the {pace:.2g} s of an image in {names}; timing sessions come on top"
    )


def _parts(config: SweepConfig, storage: Storage) -> Iterator[tuple[str, str]]:
    """The parts of the sweep, in the order of a run."""
    yield "store", storage.display_name
    yield from _resume(config, storage)
    yield "models", str(config.models)
    yield "captions", _captions(config)
    yield "reference", describe_reference(config.reference)
    yield "sampling", _sampling(config)
    first = dict.fromkeys((VANILLA, *(entry.label for entry in config.enqueue)))
    yield "first", ", ".join(first)
    yield from _search(config)
    yield "budget", _budget(config, len(first))
    yield "quality", _quality(config)
    yield "timing", _timing(config)
    yield "racing", _racing(config)
    yield "objectives", ", ".join(_objectives(config))
    yield "constraints", ", ".join(constraint.text for constraint in config.constraints)
    metrics = "all that are available" if config.metrics is None else ", ".join(config.metrics)
    yield "metrics", metrics
    yield "seed", str(config.seed)


def _sampling(config: SweepConfig) -> str:
    """The sampling of all configs."""
    values = {} if config.sampling is None else config.sampling.to_mapping()
    if not values:
        return "the target's own"
    return ", ".join(f"{key} {value:g}" for key, value in values.items())


def _objectives(config: SweepConfig) -> Iterator[str]:
    for objective in config.objectives:
        direction = f" ({objective.direction})" if objective.direction else ""
        yield objective.metric + direction


def _search(config: SweepConfig) -> Iterator[tuple[str, str]]:
    """The sampler, and the parameters that it searches."""
    search = config.search
    space = config.space
    sampler = search.sampler if space.source else "none"
    yield "search", f"{sampler}, {search.parallel} trials in flight"
    size = space.size()
    if size and space.source:
        yield "space", counted(size, "point")
    searched = {_searched_key(name): domain for name, domain in space.parameters().items()}
    column = min(max((len(name) for name, _ in searched), default=0), _MAX_NAME_WIDTH)
    for (name, condition), domain in searched.items():
        values = " | ".join(domain) if isinstance(domain, tuple) else str(domain)
        yield f"  {name:<{column}}", values + condition


def _budget(config: SweepConfig, first: int) -> str:
    """The limits of the sweep. first: the number of settings that run before the search's."""
    budget = config.budget
    limits = {unit: getattr(budget, unit) for unit in ("trials", "images", "hours")}
    text = ", ".join(f"{limit:g} {unit}" for unit, limit in limits.items() if limit is not None)
    if budget.plateau is not None:
        last = f"the last {counted(budget.patience or 0, 'trial')}"
        share = f"{100 * budget.plateau:g} %"
        text = f"at most {text}; less once {last} add less than {share} to the front"
    size = config.space.size()
    if size is not None and size + first < budget.trials:
        text += f"; there are at most {size + first} settings"
    return text


def _captions(config: SweepConfig) -> str:
    """The captions, and what to know of their folder, if they are of one."""
    from workers.data.captions import folder_notes

    captions = config.captions
    text = f"{captions.count} of {captions.source}, seed {captions.seed}"
    notes = folder_notes(captions.source)
    return f"{text}; {notes}" if notes else text


def _quality(config: SweepConfig) -> str:
    """The images of a trial, and of all of them."""
    captions = config.captions.count
    quality = config.quality
    images = captions * quality.samples
    fewer = ", fewer of a lossless one" if quality.lossless == "check" else ""
    total = f"{images} images a trial{fewer}, at most {images * config.budget.trials:,} in all"
    shards = f"{captions} captions x {quality.samples}, batch {quality.batch}"
    return f"{shards}: {total}{_on(quality.nodes)}"


def _timing(config: SweepConfig) -> str:
    """What a timing session has."""
    from workers.data.shards import session_images
    from workers.metrics.registry import uses_timings

    timing = config.timing
    if not uses_timings(config.requested_metrics):
        return "none: no metric of the sweep needs it"
    timed = session_images(timing.images, timing.batches)
    return (
        f"each shape in turn with vanilla, {timed} captions x at most {timing.repetitions} in a "
        f"session, batch {' and '.join(map(str, timing.batches))}{_on(timing.nodes)}"
    )


def _racing(config: SweepConfig) -> str:
    """When trials are stopped, and by which rule; "" without racing."""
    racing = config.racing
    if racing is None:
        return ""
    rule = "stops dominated trials"
    if racing.error_rate is not None:
        rule = f"stops significantly worse trials, error rate {racing.error_rate:g}"
    return f"at {', '.join(map(str, racing.rungs))} captions; {rule}"


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
        most = counted(reference.count, "image")
        return f"at most {most} of {source}; not checked: {explain(error)}"
    text = f"{counted(count, 'image')} of {source}"
    return f"{text}; left out: {left_out}" if left_out else text


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
    from orchestrator.store import files, locks
    from orchestrator.store.records import read_trials

    if not storage.exists(files.SWEEP):
        return
    records = read_trials(storage)
    states = [record.state for record in records]
    finished = f"{counted(len(records), 'trial')} finished"
    if records:
        known = (state for state in ("complete", "stopped", "failed") if state in states)
        finished += f" ({', '.join(f'{states.count(state)} {state}' for state in known)})"
    left = max(0, config.budget.trials - len(records))
    more = "no other: the budget of trials is spent (--trials raises it)"
    if left:
        more = f"{left} more of the budget"
    recorded = {name for record in records for name in record.shards}
    unfinished = sum(
        f"{files.SHARDS}/{name}" not in recorded for name in storage.names(files.SHARDS)
    )
    kept = ""
    if unfinished:
        kept = f"; {counted(unfinished, 'shard')} of unfinished trials will not be generated again"
    yield "resume", f"{finished}; --resume keeps them and runs {more}{kept}"
    if (driver := locks.read_holder(storage, files.DRIVER_LOCK)) and driver.is_alive:
        yield "running", f"{driver.name}: a launch is refused until it ends"


def _line(label: str, text: str) -> str:
    return _fill(text, f"  {label:<{_LABEL_WIDTH - 1}} ")


def _fill(text: str, head: str = "") -> str:
    """Text after a head, in lines that fit a terminal."""
    width = min(terminal_width(), _MAX_WIDTH) if sys.stdout.isatty() else _MAX_WIDTH
    return textwrap.fill(
        text, width, initial_indent=head, subsequent_indent=" " * len(head), break_on_hyphens=False
    )
