"""The list of planted faults still applies to the tree, so `python -m tests.planted_faults` can run
it.
"""

from __future__ import annotations

from tests.planted_faults import ROOT, read_faults


def test_every_fault_applies() -> None:
    faults = read_faults()
    assert len({fault.id for fault in faults}) == len(faults) > 100
    assert {fault.id: problem for fault in faults if (problem := fault.problem(ROOT))} == {}
    assert all(fault.old != fault.new and fault.tests for fault in faults)
