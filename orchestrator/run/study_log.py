"""The study of a sweep for Optuna users, written while the sweep runs. It is a view: the sweep never reads it.

A thread writes whole trials, in order. If the database is away or does not answer, writing is delayed, the sweep is
not: every start adds the trials that the study lacks.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from optuna.samplers import RandomSampler
from optuna.study import Study, create_study
from optuna.trial import Trial, TrialState, create_trial

from orchestrator.results.axes import Direction
from orchestrator.results.databases import sole_creator
from orchestrator.results.redaction import without_credentials
from orchestrator.results.trials import STOPPED, TrialRecord
from orchestrator.run.study import Proposal, objective_values
from orchestrator.run.study_names import short_names
from orchestrator.run.study_note import write_note
from orchestrator.run.study_pictures import add_pictures
from orchestrator.run.study_storage import (
    SWEEP,
    TRIAL,
    StudyError,
    check_owner,
    open_storage,
    own_trials,
    reason,
    storage_problem,
)

_STOPPED_EARLY = "stopped early"  # a constraint
_NAMES, _SHORT = "parameter names", "short"  # a user attribute of the study
_RETRY_S = (0.5, 20.0)  # the first wait after a failure, and the longest; each wait doubles the last
_MAX_ATTEMPTS = 5  # at one entry while the study can be read; then it is left to the next start
_FLUSH_TIMEOUT_S = 30.0


Entry = TypeVar("Entry")


class StudyLog:
    """Every trial with its parameters, values and constraints.

    parameters: names of the space's parameters, which the study has by their short names, unless it was made before
    there were any.

    Raises:
        StudyError: the storage cannot be opened, or holds another sweep's study of that name.
    """

    def __init__(
        self,
        name: str,
        url: str,
        directions: Sequence[Direction],
        objectives: Sequence[str],
        sweep_id: str,
        parameters: Iterable[str] = (),
    ) -> None:
        self.objectives = list(objectives)
        try:
            with sole_creator(url):
                storage = open_storage(url)
                check_owner(storage, url, name, directions, sweep_id)
                self._study: Study = create_study(
                    study_name=name,
                    storage=storage,
                    directions=list(directions),
                    load_if_exists=True,
                    sampler=RandomSampler(),
                )
                self._states = self._read_states()
                if not self._states:  # a new study, or one whose first launch was killed
                    self._study.set_user_attr(SWEEP, sweep_id)
                    self._study.set_user_attr(_NAMES, _SHORT)
                    self._study.set_metric_names(self.objectives)
        except StudyError:
            raise
        except Exception as error:  # any exception of the database's driver
            raise StudyError(storage_problem(url, error)) from error
        self._public_url = without_credentials(url)
        self._journal = None if "://" in url else Path(url).expanduser()
        self._short = short_names(parameters) if self._study.user_attrs.get(_NAMES) == _SHORT else {}
        self._problem = self._left_out = ""  # of the last attempt; of the last entry that was given up
        self._entries: queue.Queue[Callable[[], None]] = queue.Queue()
        self._closing = threading.Event()
        threading.Thread(target=self._write_entries, name="study", daemon=True).start()

    def add(self, proposal: Proposal, setting: str) -> None:
        """Write a trial that starts, unless the study has it. Returns at once. setting: its setting's name."""
        self._entries.put(lambda: self._add(proposal, setting))

    def note(self, text: str) -> None:
        """Replace the study's note, Markdown that Optuna's dashboard shows. Returns at once."""
        self._entries.put(lambda: write_note(self._study, text))

    def finish(self, record: TrialRecord, expected: TrialRecord) -> None:
        """Write the result of a trial, unless the study has it. Returns at once.

        expected: the record with the values to tell. Optuna has no pruning for several objectives: a stopped trial is
        complete there. Its user attribute `stopped` has the reason, the metrics are values on its `images`, and it
        violates the constraint `stopped early`, so it is not among the study's best trials.
        """
        self._entries.put(lambda: self._finish(record, expected))

    def revive(self, record: TrialRecord) -> None:
        """Add a revived trial's result to the study's user attributes. Optuna changes no finished trial."""
        self._entries.put(lambda: self._revive(record))

    def flush(self, timeout_s: float = _FLUSH_TIMEOUT_S) -> str | None:
        """Wait until everything is written. Returns a sentence if the study still lacks something."""
        with self._entries.all_tasks_done:
            self._entries.all_tasks_done.wait_for(lambda: not self._entries.unfinished_tasks, timeout_s)
            unwritten = self._entries.unfinished_tasks
        if not unwritten and not self._left_out:
            return None
        why = self._left_out or self._problem or "no response"
        return f"{self._public_url}: the study lacks trials or results ({why}); the next --resume adds them"

    def close(self) -> None:
        """Stop writing, but for the entry that is being written: the next start adds what is missing, and would have it
        twice if that entry came later.
        """
        self._closing.set()
        self.flush()

    def _write_entries(self) -> None:
        while True:
            entry = self._entries.get()
            for _ in range(_MAX_ATTEMPTS):
                if self._closing.is_set() or self._write(entry):
                    break
                self._wait_until_readable()
            else:
                self._left_out = self._problem
            self._entries.task_done()

    def _write(self, entry: Callable[[], None]) -> bool:
        """Try to write an entry; whether it is written."""
        try:
            entry()
        except Exception as error:  # any exception of the database's driver
            self._problem = reason(error)
        else:
            self._problem = ""
        return not self._problem

    def _wait_until_readable(self) -> None:
        """Wait until the study can be read, and read what it has: an entry may have arrived although it failed."""
        wait = _RETRY_S[0]
        while not self._closing.wait(wait):
            try:
                self._states = self._read_states()
                return
            except Exception as error:  # any exception of the database's driver
                self._problem = reason(error)
                wait = min(2 * wait, _RETRY_S[1])

    def _read_states(self) -> dict[int, TrialState]:
        """The states of the sweep's own trials."""
        return {number: trial.state for number, trial in own_trials(self._study.get_trials(deepcopy=False)).items()}

    def _shorten(self, entries: Mapping[str, Entry]) -> dict[str, Entry]:
        return {self._short.get(name, name): entry for name, entry in entries.items()}

    def _add(self, proposal: Proposal, setting: str) -> None:
        if proposal.number in self._states:
            return
        attrs: dict[str, Any] = {TRIAL: proposal.number, "setting": setting, "label": proposal.label}
        if proposal.config is not None:
            attrs |= proposal.config.flat() | {"digest": proposal.config.digest()}
        self._study.add_trial(
            create_trial(
                state=TrialState.RUNNING,
                params=self._shorten(proposal.params),
                distributions=self._shorten(proposal.distributions),
                user_attrs=attrs,
            )
        )
        self._states[proposal.number] = TrialState.RUNNING

    def _finish(self, record: TrialRecord, expected: TrialRecord) -> None:
        if self._states.get(record.number) != TrialState.RUNNING:
            return
        frozen = own_trials(self._study.get_trials(deepcopy=False))[record.number]
        trial = Trial(self._study, frozen._trial_id)
        for name, entry in record.metrics.items():
            trial.set_user_attr(name, entry.value)
        trial.set_user_attr("images", record.images)
        if record.cause:
            trial.set_user_attr("stopped" if record.state == STOPPED else "cause", record.cause)
        values = objective_values(expected, self.objectives)
        stopped = {_STOPPED_EARLY: 1.0} if record.state == STOPPED else {}
        for name, violation in {**record.constraints, **stopped}.items() if values else ():
            trial.set_constraint(name, violation)
        if self._journal is not None:
            add_pictures(self._study._storage, frozen._trial_id, record.digest, self._journal)
        self._study.tell(trial, values, state=None if values else TrialState.FAIL)
        self._states[record.number] = TrialState.COMPLETE

    def _revive(self, record: TrialRecord) -> None:
        metrics = [(name, record.metrics[name].value) for name in self.objectives if name in record.metrics]
        values = ", ".join(f"{name} {value:.6g}" for name, value in metrics)
        self._study.set_user_attr(f"revived {record.number}", f"{record.state} at {record.images} images: {values}")
