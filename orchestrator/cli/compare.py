"""`specfrontier compare`: fronts of sweeps, or of methods within them; or a sweep and a paper's
table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import typer

from orchestrator.cli import query_options as o
from orchestrator.cli.text import say, show, shown_table
from orchestrator.errors import WRONG_USAGE, CommandError, QueryError
from orchestrator.options import AsJson, flag, grouped, option, output_file
from orchestrator.outputs import PAGES, PAPER_TABLES, ending_of, write_output
from orchestrator.text import counted
from workers.metrics.estimate import measured

if TYPE_CHECKING:
    from orchestrator.front.compare import Comparison
    from orchestrator.front.front import Front
    from orchestrator.shown.papers import Replication, TableRow
    from orchestrator.store.sweep import Sweep
    from search_spaces.trial import DecodingConfig

EPILOG = """\b
Examples:
  specfrontier compare sweeps/before sweeps/after
  specfrontier compare quickstart --by acceptance --y drift
  specfrontier compare quickstart --by device
  specfrontier compare before after --by position
  specfrontier compare before after --html --out compare.html
  specfrontier compare gpu1 gpu2 --x step_compression --y latency --json
  specfrontier compare lantern-table2 --published
  specfrontier compare mine papers/lantern-table2 --published --json
  specfrontier compare lantern-table2 --published --table table.tex
"""

_PARTS = ("acceptance", "tree", "drafter")  # parts of a setting
_DEVICE = "device"  # in the place of a column
_ACCEPTANCE = ("position", "group")  # likewise


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """The options that say what is compared, if it is not the fronts of sweeps."""

    by: str | None = option(
        "Compare trials grouped by the values of this column, or by the kinds of a whole part: "
        "acceptance (neighbourhood, schedule and resampling), tree, drafter. Or `device`: a "
        "sweep's speeds and fronts on all devices and at all batch sizes that it was timed on; "
        "`position`: how often the trials on the fronts accept the draft at each position; `group`: "
        "how many drafts they accept, by group of captions.",
        "COLUMN",
    )
    published: bool = flag(
        "Compare the trials with a paper's table: the one with the sweep's name, or one given "
        "after the sweep (papers/lantern-table2). Papers print no errors: theirs are estimated "
        "from ours and their number of images. A figure differs if z, its distance beyond "
        "rounding over both errors, is above the 5 % level of Student's t."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """The options that say what is shown and written."""

    reference_point: o.ReferencePoint = None
    html: bool = flag("Write a report of the sweeps as one HTML page, and print its path.")
    out: str | None = option(
        "File of --html. Default: compare.html in this folder.",
        "FILE",
        callback=output_file(PAGES),
    )
    table: str | None = option(
        "Write the table of --published as .tex or .md, measured values beside the published ones.",
        "FILE",
        callback=output_file(PAPER_TABLES),
    )
    as_json: AsJson = False


@grouped
@o.query_errors()
def compare(
    sweeps: o.Sweeps, kind: Kind, query: o.Query, prices: o.PriceOptions, output: Output
) -> None:
    """Compare the fronts of sweeps, or of methods inside them: hypervolume, additive epsilon and
    coverage.

    Without --x and --y, sweeps are compared by the objectives that all of them measured; a note
    names the others. Refuses metrics that are not comparable: FIDs with other features, captions,
    reference images or numbers of images, and seconds of another device. Ratios to vanilla, such as
    speedup, are always compared; notes say whether the sampling, and with it vanilla, the captions
    or the devices differ.
    """
    by = kind.by
    _check_options(sweeps, kind, query, prices, output)
    if kind.published:
        _compare_with_papers(sweeps, output.table, as_json=output.as_json)
        return
    opened = prices.open(sweeps)
    if by == _DEVICE:
        opened = list(chain.from_iterable(map(_on_all_machines, opened)))
        by = None
    from orchestrator.front.compare import compare as compare_fronts
    from orchestrator.front.compare import shared_objectives

    missing: list[str] = []
    if len(opened) > 1 and not (query.x or query.y or query.z):
        shared, missing = shared_objectives([sweep.identity for sweep in opened])
        x, y, z = (*shared, None)[:3]
        query = replace(query, x=x, y=y, z=z)
    front = query.front(opened)
    if by in _ACCEPTANCE:
        from orchestrator.cli.acceptance import compare_acceptance

        trials, lines = compare_acceptance(front, by)
        show({f"by_{by}": trials}, lines, as_json=output.as_json)
        return
    corner = o.read_point(output.reference_point, len(front.metrics))
    found = compare_fronts(front.joint_errors, _group(front, by), front.metrics, corner)
    warnings = [*missing, *_cautions(front, is_by_device=kind.by == _DEVICE)]
    if output.html:
        typer.echo(_write_page(opened, front, found, warnings, output.out))
        return
    facts = {
        "objectives": [
            {"metric": metric.name, "direction": metric.direction} for metric in front.metrics
        ],
        **asdict(found),
    }
    names = [metric.name for metric in front.metrics]
    lines = _describe(found, names, "sweep" if by is None else "group")
    if kind.by == _DEVICE:
        facts["by_device"], above = _by_device(opened, query)
        lines = [*above, *lines]
    if not output.as_json:
        for warning in warnings:
            say(f"Note: {warning}.")
    show({**facts, "warnings": warnings}, lines, as_json=output.as_json)


def _check_options(
    sweeps: Sequence[str], kind: Kind, query: o.Query, prices: o.PriceOptions, output: Output
) -> None:
    """Raise CommandError for options that cannot be combined, or of which one is missing."""
    by = kind.by
    if kind.published:
        is_alone = not by and query == o.Query() and prices == o.PriceOptions()
        if not is_alone or output != Output(as_json=output.as_json, table=output.table):
            raise CommandError(
                "--published can be combined with --table and --json only: it compares all",
                WRONG_USAGE,
            )
        return
    if output.table is not None:
        raise CommandError(
            "--table is the table of --published; add it, or use `pareto --table`", WRONG_USAGE
        )
    if by is None and len(sweeps) < 2:
        raise CommandError(
            "give at least two sweeps, or compare methods inside one with --by COLUMN", WRONG_USAGE
        )
    if output.html and (by or output.as_json or query != o.Query(x=query.x, y=query.y)):
        raise CommandError(
            "--html can be combined with --x, --y, --reference-point and --out only", WRONG_USAGE
        )
    if output.out is not None and not output.html:
        raise CommandError("--out names the file of --html; add --html", WRONG_USAGE)
    if by == _DEVICE and prices != o.PriceOptions():
        raise CommandError(
            "--by device shows all devices and batch sizes; leave out --device, --batch",
            WRONG_USAGE,
        )


def _on_all_machines(sweep: Sweep) -> list[Sweep]:
    """The sweep with its speeds on each device and at each batch size that it was timed on.

    Raises:
        QueryError: it was timed on one only.
    """
    from orchestrator.store import files
    from orchestrator.store.prices import Machine

    machines = Machine.all(sweep.prices)
    if len(machines) < 2:
        where = f"on {machines[0]} only" if machines else "on no device"
        time = files.command(sweep.storage, "time")
        raise QueryError(
            f"sweep {sweep.name} was timed {where}; `{time}` times it on another device, or at "
            "another --batch"
        )
    return [sweep.priced_on(machine) for machine in machines]


def _by_device(sweeps: Sequence[Sweep], query: o.Query) -> tuple[dict[str, Any], list[str]]:
    """The trials on the front of any device, and vanilla: their speeds on all of them, by the
    sweep's place. sweeps: on each device.
    """
    from orchestrator.cli.devices import side_by_side

    by_place: dict[str, list[Front]] = {}
    for sweep in sweeps:
        by_place.setdefault(sweep.storage.display_name, []).append(query.front([sweep]))
    facts = dict[str, Any]()
    lines = list[str]()
    for place, fronts in by_place.items():
        numbers = {trial.number for front in fronts for trial in front.members}
        for front in fronts:
            baselines = [sweep.baseline for sweep in front.sweeps.values()]
            numbers |= {baseline.number for baseline in baselines if baseline is not None}
        facts[place], table = side_by_side(fronts, numbers)
        if len(by_place) > 1:
            lines.append(place)
        lines += [*table, ""]
    return facts, lines


def _write_page(
    sweeps: Sequence[Sweep],
    front: Front,
    found: Comparison,
    warnings: Sequence[str],
    out: str | None,
) -> str:
    """Write the report of several sweeps; returns its path."""
    from orchestrator.report.page import page_data, render

    metrics = [metric.name for metric in front.metrics]
    data = page_data(sweeps, say, metrics, comparison=found, warnings=warnings)
    return write_output(out or "compare.html", render(data).encode())


def _cautions(front: Front, *, is_by_device: bool) -> list[str]:
    """What a reader should know of the compared values."""
    from orchestrator.front.compare import cautions
    from orchestrator.shown.status import timing_notes

    notes: list[str] = []
    for name, sweep in front.sweeps.items():
        whose = f"{name}, " if len(front.sweeps) > 1 and not is_by_device else ""
        notes += [whose + text for text in timing_notes(sweep)]
    if is_by_device:  # a sweep has the same notes on each of its devices
        return list(dict.fromkeys(notes))
    identities = [sweep.identity for sweep in front.sweeps.values()]
    return [*notes, *cautions(identities, front.metrics)]


def _group(front: Front, by: str | None) -> dict[str, list[int]]:
    """The candidates' indices by sweep, by the values of a column, or by both if there are several
    sweeps.

    Raises:
        QueryError: no such column, or fewer than two groups.
    """
    from orchestrator.front.query import column_of
    from search_spaces.params import unknown_key

    groups: dict[str, list[int]] = {}
    if by is None:
        groups = {name: [] for name in front.sweeps}
        for index, trial in enumerate(front.candidates):
            groups[trial.origin].append(index)
        return groups
    column = []
    if by not in _PARTS:
        try:
            column = column_of(front.trials, by).to_pylist()
        except ValueError:
            problem = unknown_key(by, [*_PARTS, _DEVICE, *front.trials.column_names], "column")
            raise QueryError(f"--by {by}: {problem}") from None
    for index, trial in enumerate(front.candidates):
        value = _part_kinds(by, trial.config) if by in _PARTS else column[trial.row]
        shown = _group_name(value, by, trial.config)
        if len(front.sweeps) > 1:
            shown = f"{trial.origin} {shown}"
        groups.setdefault(shown, []).append(index)
    if len(groups) < 2:
        found = f"only {next(iter(groups))}" if groups else "no measured trial"
        raise QueryError(f"--by {by}: needs two groups, found {found}")
    return groups


def _part_kinds(part: str, config: DecodingConfig) -> str:
    """The kinds of a part of a setting, without numbers: `additive exponential, optimal`; `vanilla`
    for each part of vanilla.
    """
    from orchestrator.store.names import VANILLA, family
    from search_spaces.acceptance import EXACT

    if config.is_vanilla:
        return VANILLA
    if part == "tree":
        return config.policy.kind
    if part == "drafter":
        return config.drafter.kind
    resampling = config.acceptance.resampling
    if resampling == EXACT.resampling:
        return family(config)
    return f"{family(config)}, {resampling}"


def _group_name(value: Any, by: str, config: DecodingConfig) -> str:
    """The group of trials with this value of the column. Of a kind `none`, vanilla and exact rules
    are groups of their own, and the others `no neighbourhood`.
    """
    from orchestrator.store.names import VANILLA, family

    if value is None:
        return "not set"
    if isinstance(value, float):
        return f"{value:g}"
    if value != "none":
        return str(value)
    if config.is_vanilla:
        return VANILLA
    if not config.acceptance.is_relaxed:
        return family(config)
    return f"no {by.rpartition('.')[2]}"


def _describe(found: Comparison, metrics: list[str], what: str) -> list[str]:
    """The comparison as lines of text. what: the word for what is compared, `sweep` or `group`."""
    corner = _named_values(metrics, found.reference)
    scale = _named_values(metrics, found.scale)
    best = max(found.hypervolumes.values())
    volumes = []
    for name, volume in sorted(found.hypervolumes.items(), key=lambda entry: -entry[1]):
        error = found.hypervolume_errors[name]
        of_best = f"{100 * volume / best:.1f} %" if best > 0 else "-"
        volumes.append([name, *map(str, found.sizes[name]), measured(volume, error), of_best])
    pairs = []
    for pair in found.pairs:
        more, error = pair.difference
        epsilons = " / ".join(f"{epsilon:.3f}" for epsilon in pair.epsilon)
        covers = " / ".join(f"{100 * share:.0f} %" for share in pair.coverage)
        pairs.append([pair.first, pair.second, measured(more, error), epsilons, covers])
    return [
        shown_table(
            [what, "trials", "on front", "hypervolume", "of the largest"],
            volumes,
            right=[1, 2, 3, 4],
        ),
        f"from the reference point {corner}",
        "",
        shown_table([what, "against", "difference", "epsilon", "covers"], pairs, right=[2, 3, 4]),
        (
            "difference: how much larger the first hypervolume is, with its error; trials on equal "
            "captions are paired"
        ),
        (
            "epsilon: how much the first front must improve to match the second everywhere / the "
            f"second to match the first, in units of the fronts' range ({scale}); 0 or less: it "
            "already does"
        ),
        (
            "covers: the share of the second front that the first equals or dominates / of the "
            "first that the second does"
        ),
    ]


def _named_values(metrics: Sequence[str], values: Sequence[float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in zip(metrics, values, strict=True))


def _compare_with_papers(names: list[str], file: str | None, *, as_json: bool) -> None:
    """Print each sweep next to each table.

    names: of sweeps and tables; without tables, each sweep is compared with the one of its name.
    file: where the tables are written as a paper prints them.

    Raises:
        CommandError: no sweep, or no such table.
    """
    from orchestrator.shown.papers import FOLDER, replicate, tables

    given_tables = [name for name in names if name in tables()]
    # a replication has notes
    opened = o.PriceOptions().open([name for name in names if name not in given_tables])
    if not opened:
        raise CommandError(
            f"--published: give a sweep to compare with {', '.join(given_tables)}", WRONG_USAGE
        )
    replications: list[Replication] = []
    lines: list[str] = []
    for sweep in opened:
        for table in given_tables or [FOLDER + sweep.name]:
            found = replicate(sweep, table)
            if replications:
                lines += ["", ""]
            lines += _describe_replication(found)
            replications.append(found)
    if file is not None:
        from orchestrator.shown.paper_tables import replication_table

        ending = ending_of(file, PAPER_TABLES)
        data = b"\n".join(replication_table(entry).write(ending) for entry in replications)
        lines.append(f"table: {write_output(file, data)}")
    show([entry.to_mapping() for entry in replications], lines, as_json=as_json)


def _describe_replication(found: Replication) -> list[str]:
    """The replication as lines of text."""
    from orchestrator.shown.papers import RULE

    head = ["config", "trial", "metric", "measured", "published", "z", ""]
    cells = [line for row in found.rows for line in _row_lines(row)]
    different = found.with_verdict("differs")
    equal = found.with_verdict("agrees")
    verb = "differs" if len(different) == 1 else "differ"
    total = counted(len(different) + len(equal), "figure")
    result = f"{len(different)} of {total} {verb} beyond the measured uncertainty"
    if different:
        which = "; ".join(f"{row.row.label} ({figure.metric})" for row, figure in different)
        result += f": {which}"
    lines = [
        f"{found.sweep} next to {found.table}",
        *found.notes,
        *found.caveats,
        "",
        shown_table(head, cells, right=[1, 3, 4, 5]),
        "",
        result,
    ]
    if missing := found.with_verdict("not measured"):
        lines.append(f"{counted(len(missing), 'figure')} not compared: not measured")
    if unsure := found.with_verdict("no error"):
        lines.append(f"{counted(len(unsure), 'figure')} not compared: no error")
    lines += [
        f"{row.row.label}: run with {', '.join(row.differences)}"
        for row in found.rows
        if row.differences
    ]
    return [*lines, RULE]


def _row_lines(row: TableRow) -> list[list[str]]:
    """The table's lines for a row: its figures, then the paper's figures that have no metric
    here.
    """
    lines = []
    for figure in row.figures:
        value = "-" if figure.measured is None else str(figure.measured)
        printed = figure.in_our_unit
        if figure.in_our_unit != figure.printed:
            printed += f" ({figure.printed})"
        z = "-" if figure.z is None else f"{figure.z:.1f}"
        lines.append([figure.metric, value, printed, z, figure.verdict])
    lines += [[name, "-", value, "-", "no metric here"] for name, value in row.row.figures.items()]
    trial = "none" if row.trial is None else str(row.trial)
    first, *others = lines or [["-", "-", "-", "-", "no figures"]]
    return [[row.row.label, trial, *first], *(["", "", *line] for line in others)]
