"""Valid command lines of every command, their options, and hostile values for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

CAPTION = "a large red circle"
TEXTS = (
    "",
    " ",
    "-",
    "..",
    "../../../nowhere/x",
    "/proc/x/y",
    "nowhere/at/all",
    "a" * 5000,
    "\u202egnp.exe",
    "🙂\n\t",
    "%s%n{}",
    "[[[",
    "!!python/object:os.system",
    "s3://",
    "http://[",
    "file://host/x",
    "postgresql://u:p@",
    "nan",
    "-1",
    "file/below",
    "deep.json",
    "images",
    "sweeps/fuzzed/trials",
    "a,b",
    "a=b=c",
    "fid<=",
    "x >= 1e999",
    "__class__",
    "s3://bucket/a b",
    "s3://K:sec/ret@bucket/a",
    "s3://bucket/a#b",
    "s3:/bucket/a",
    "file:///x?y",
    "local",
    "127.0.0.1:1",
    "[::1]:1",
    "::1:1",
    "ray://127.0.0.1:1",
    "http://127.0.0.1:1",
    "postgresql://u:p/w@127.0.0.1:1/d",
    "sqlite:////x/a?b",
    "gs://anonymous@bucket/a?endpoint_override=127.0.0.1:1&scheme=http",
)
NUMBERS = (
    "-1",
    "0",
    "1.5",
    "nan",
    "inf",
    "-inf",
    "1e400",
    str(10**23),
    "",
    "0x10",
    "1_0_",
    "٣",
    "1,5",
    "true",
    "-0.0",
)
_SPACE = ("space.yaml",)
_SWEEP = ("sweeps/fuzzed",)


@dataclass(frozen=True, slots=True)
class Command:
    """A command line that is valid, and its options that take a text or a number. argument: whether
    its argument is varied too. Commands that would serve or compute for long get inputs that must
    be refused.
    """

    words: tuple[str, ...]
    texts: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()


COMMANDS: Mapping[str, Command] = {
    "launch": Command(
        ("launch", *_SPACE, "--check", "--out", "new"),
        (
            "--out",
            "--name",
            "--sampler",
            "--set",
            "--models",
            "--address",
            "--study",
            "--tracking-uri",
            "--revive",
        ),
        (
            "--trials",
            "--images",
            "--hours",
            "--parallel",
            "--seed",
            "--workers",
            "--cpus-per-worker",
            "--gpus-per-worker",
            "--threads",
        ),
    ),
    "predict": Command(
        ("predict", *_SPACE, "--settings", "2", "--captions", "2", "--out", "new"),
        ("--out", "--from", "--set", "--models", "--device"),
        ("--settings", "--captions", "--threads"),
    ),
    "status": Command(("status", *_SWEEP)),
    "show": Command(("show", *_SWEEP, "0"), ("--device",), ("--batch",)),
    "diff": Command(("diff", *_SWEEP, "0", "1")),
    "pareto": Command(
        ("pareto", *_SWEEP),
        (
            "--x",
            "--y",
            "--z",
            "--where",
            "--subject-to",
            "--best",
            "--config",
            "--reference-point",
            "--csv",
            "--plot",
        ),
    ),
    "compare": Command(
        ("compare", *_SWEEP, "sweeps/second"),
        ("--by", "--x", "--y", "--z", "--where", "--subject-to", "--reference-point", "--html"),
    ),
    "report": Command(("report", *_SWEEP, "--out", "new.html"), ("--out",)),
    "reference": Command(
        ("reference", "images", "--out", "new.parquet"),
        ("--out", "--models", "--device"),
        ("--count", "--seed", "--threads"),
    ),
    "ui": Command(("ui", "nowhere"), ("--host",), ("--port",)),
    "sync": Command(("sync", "nowhere"), ("--uri", "--experiment")),
    "generate": Command(
        ("generate", CAPTION, "--models", "weights", "--out", "new"),
        ("--captions", "--preset", "--config", "--set", "--out", "--models", "--device"),
        ("--batch", "--seed", "--samples", "--threads"),
    ),
    "train": Command(
        ("train", "eagle", "--captions", "scenes", "--steps", "0", "--out", "new"),
        ("--out", "--device", "--captions", "--models", "--address", "--tracking-uri"),
        (
            "--steps",
            "--seed",
            "--threads",
            "--count",
            "--batch",
            "--rate",
            "--save-every",
            "--workers",
        ),
    ),
    "doctor": Command(
        ("doctor", "--plan", *_SPACE),
        ("--models", "--plan"),
        (
            "--batch",
            "--gpus",
            "--gpu-memory",
            "--gpu-bandwidth",
            "--gpu-compute",
            "--accepted-length",
        ),
    ),
}


REFUSED = ("ui", "sync", "train")  # as they are: they would serve, log or train
