"""Notes on the numbers of the report."""

from __future__ import annotations

from orchestrator.front.what_next import what_next
from orchestrator.report.section import SECTIONS, Section, Subject

_NOTES = (
    (
        "± is one standard error: how far the value would vary with other captions of the same "
        "kind, and a speed also with other timing sessions on the same machine."
    ),
    (
        "All trials use the same captions and random numbers, so much of their errors cancels in a "
        "difference. Two values are within error of each other if their difference is within "
        "Student's t of what does not cancel (95 %)."
    ),
    (
        "A trial that stopped early has values of fewer images. They are not compared with those "
        "of complete trials: it is on no front and in no plot, and comes last where the table is "
        "sorted by a metric."
    ),
    (
        "The front consists of the trials that meet all constraints and that no other such trial "
        "dominates in both metrics. Its line has steps: at each value of one metric it shows the "
        "best measured value of the other. The dominated region is tinted."
    ),
    (
        "The share of draws is how often a trial is on the front when every value is redrawn from "
        "its error. It is given for the initial axes. Below a choice it is how often the trial is "
        "within the bar, is the knee, or is better than vanilla on the x axis."
    ),
    (
        "A lossless setting has an exact rule and the baseline's sampling: its images have "
        "vanilla's own distribution, whatever their measured quality."
    ),
    (
        "Distances such as fid depend on the feature extractor, the reference set and the number "
        "of images: compare them within this sweep, or with a sweep that shares all three. Fewer "
        "images bias fid upwards; fid_debiased removes most of the bias and estimates fid for "
        "infinitely many images."
    ),
    (
        "speedup is vanilla's seconds over the setting's: the decoding passes of all images times "
        "the cost of a pass. The costs are measured in timing sessions: one worker generates the "
        "same captions with vanilla and several settings in turn. Trials whose settings differ "
        "only in the rule's numbers share these costs and their noise. latency is vanilla's over "
        "the speed-up. Both hold for the machine and the batch size of the sessions."
    ),
)


def notes(subject: Subject) -> tuple[str, ...]:
    front = subject.front
    if front is None or len(front.members) < 2:
        return _NOTES
    sentences = "; ".join(what_next(front).sentences)
    return (f"What more measurements would show: {sentences}.", *_NOTES)


SECTIONS.add("notes", Section("Notes on the numbers", 80, notes))
