"""A short run of `benchmarks.fuzz`: damaged files, hostile inputs and surroundings, commands in
this process.
"""

from __future__ import annotations

import pytest

from benchmarks.fuzz_cases import Case
from benchmarks.fuzz_commands import COMMANDS
from benchmarks.fuzz_files import Pristine, fuzz_files, judge, make_pristine
from benchmarks.fuzz_inputs import fuzz_inputs, verdict
from benchmarks.fuzz_readers import KINDS, Outcome, digests
from benchmarks.fuzz_received import RECEIVED
from benchmarks.fuzz_surroundings import MAKERS, fuzz_surroundings
from benchmarks.fuzz_surroundings import verdict as surroundings_verdict
from benchmarks.fuzz_user_data import USER_DATA

SLOW = ("closed streams", "tracking servers")  # each case is a process
QUICK = {name: maker for name, maker in MAKERS.items() if name not in SLOW}
FILES, INPUTS, SURROUNDINGS, SEED = 60, 2 * len(COMMANDS), 3 * len(QUICK), 3


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Pristine:
    return make_pristine(tmp_path_factory.mktemp("fuzz") / "a", logged=False)


def test_no_damaged_file_is_silent_or_ends_in_a_traceback(pristine: Pristine) -> None:
    before = digests(pristine.folder / "sweeps")
    quick = {name: kind for name, kind in KINDS.items() if kind.quick}
    tallies = fuzz_files(pristine, FILES, SEED, kinds=quick, every=FILES)
    assert [example for tally in tallies.values() for example in tally.examples] == []
    assert sum(tally.verdicts["refused"] for tally in tallies.values()) > FILES / 4
    assert digests(pristine.folder / "sweeps") == before


def test_hostile_inputs_are_refused_and_leave_nothing(pristine: Pristine) -> None:
    tallies = fuzz_inputs(pristine, INPUTS, SEED)
    assert [example for tally in tallies.values() for example in tally.examples] == []
    assert sum(tally.verdicts["refused"] for tally in tallies.values()) > INPUTS / 2
    assert all(tally.cases for tally in tallies.values())


def test_hostile_surroundings_are_refused_by_name_and_left_as_they_are(pristine: Pristine) -> None:
    tallies = fuzz_surroundings(pristine, SURROUNDINGS, SEED, QUICK)
    assert [example for tally in tallies.values() for example in tally.examples] == []
    others = MAKERS.keys() - USER_DATA.keys() - RECEIVED.keys() - {"line breaks"}
    assert {name for name, tally in tallies.items() if tally.verdicts["refused"]} >= others
    assert sum(tallies[name].verdicts["refused"] for name in RECEIVED) > 0
    assert sum(tallies[name].verdicts["accepted"] for name in USER_DATA if name in QUICK) > 0


def test_a_verdict_on_surroundings_needs_the_name_the_time_and_the_result() -> None:
    def of(case: Case, got: Outcome, *, is_unchanged: bool = True) -> str:
        return surroundings_verdict(case, got, is_unchanged=is_unchanged)

    case, passing = (
        Case(("launch",), named="--out"),
        Case(("launch",), may_pass=True, must_pass=True),
    )
    assert of(case, Outcome(2, "Error: --out: no")) == "refused"
    assert of(case, Outcome(2, "Error: no")) == "unnamed"
    assert of(case, Outcome(2, "Error: --out: no", seconds=16)) == "slow"
    assert of(case, Outcome(2, "Error: --out: no"), is_unchanged=False) == "left something behind"
    assert of(case, Outcome(0, "")) == "adopted"
    assert of(case, Outcome(-1, "Traceback", crashed=True)) == "traceback"
    assert of(passing, Outcome(0, "")) == "accepted"
    assert of(passing, Outcome(1, "Error: no")) == "unexplained"
    assert (
        of(Case(("generate",), may_pass=True, check=lambda: False), Outcome(0, ""))
        == "wrong result"
    )
    assert (
        of(Case(("generate",), may_pass=True, output="70 images"), Outcome(0, "7 images"))
        == "wrong result"
    )
    assert (
        of(Case(("generate",), may_pass=True, output="70 images"), Outcome(0, "", "70  images"))
        == "accepted"
    )


def test_the_judge_tells_them_apart() -> None:
    whole, name = Outcome(0, "", "data"), "a/b.json"
    assert judge(whole, Outcome(0, "", "data"), name) == "harmless"
    assert judge(whole, Outcome(0, "", "other"), name) == "silent"
    assert judge(whole, Outcome(0, "b.json: damaged", "other"), name) == "rebuilt"
    assert judge(whole, Outcome(1, "b.json: damaged"), name) == "refused"
    assert judge(whole, Outcome(1, "damaged"), name) == "unnamed"
    assert judge(whole, Outcome(-1, "Traceback", crashed=True), name) == "traceback"
    assert verdict(Outcome(2, "Error: no"), is_unchanged=True) == "refused"
    assert verdict(Outcome(2, "Error: no"), is_unchanged=False) == "left something behind"
    assert verdict(Outcome(0, ""), is_unchanged=False) == "accepted"
    assert verdict(Outcome(3, "Error: no"), is_unchanged=True) == "unexplained"
