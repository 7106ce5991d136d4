"""The default storage of a sweep's study: an Optuna journal in its folder, which the trials' records can rebuild.

Optuna appends to a journal and cannot read one with a torn line, so a journal is checked before it is continued.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from optuna.trial import FrozenTrial

from orchestrator.results.trials import COMPLETE, TrialRecord
from orchestrator.run.study_storage import damaged_line, open_storage, own_trials


def restore_journal(path: Path, name: str, objectives: Sequence[str], records: Sequence[TrialRecord]) -> str | None:
    """Set a journal aside as FILE.damaged if it cannot be read, or its study `name` differs from the trials' records;
    the next study there starts empty and takes all trials. Returns a sentence about it, None if the journal is as it
    should be. What others added to the study or the journal does not count.
    """
    if not path.exists():
        return None
    problem = _problem(path, name, objectives, {record.number: record for record in records})
    if problem is None:
        return None
    kept = path.with_name(f"{path.name}.damaged")
    path.replace(kept)
    return f"{path}: {problem}; rebuilt from the trials' records, the old file is kept as {kept.name}"


def _problem(path: Path, name: str, objectives: Sequence[str], records: dict[int, TrialRecord]) -> str | None:
    if line := damaged_line(path):
        return f"line {line} is damaged"
    try:
        storage = open_storage(str(path))
        studies = [study._study_id for study in storage.get_all_studies() if study.study_name == name]
        trials = own_trials(trial for study in studies for trial in storage.get_all_trials(study, deepcopy=False))
    except Exception as error:  # whatever Optuna raises for an entry that it did not write
        return f"Optuna cannot read it ({type(error).__name__}: {str(error).partition(chr(10))[0]})"
    for number, trial in trials.items():
        record = records.get(number)
        if (record is None and trial.state.is_finished()) or (
            record is not None and _differs(trial, record, objectives)
        ):
            return f"trial {number} differs from its record"
    return None


def _differs(trial: FrozenTrial, record: TrialRecord, objectives: Sequence[str]) -> bool:
    """Whether a trial of the study has other parameters, or other results, than its record. Names may be short."""
    values = sorted(map(str, record.params.values()))
    if sorted(map(str, trial.params.values())) != values or trial.user_attrs.get("digest", "") != record.digest:
        return True
    if not trial.state.is_finished() or record.stop is not None:  # a revived trial keeps the results of its stop there
        return False
    metrics = {name: entry.value for name, entry in record.metrics.items()}
    told = [metrics[name] for name in objectives if name in metrics] if record.state == COMPLETE else None
    stored = trial.user_attrs.get("metrics", trial.user_attrs)  # one attribute in studies of earlier versions
    is_same = all(stored.get(name) == value for name, value in metrics.items())
    return not is_same or (told is not None and trial.values != told)
