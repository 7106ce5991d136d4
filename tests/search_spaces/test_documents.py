"""YAML with line numbers: what is read, what is refused, and where the complaint points."""

from __future__ import annotations

import math
import pickle
from importlib.resources import files
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces.documents import (
    MAX_LENGTH,
    MAX_VALUES,
    Document,
    describe_differences,
    differences,
    read_document,
    write_document,
)
from search_spaces.params import ConfigError

TEXT = """\
name: x   # a comment

tree:
  - policy: chain
    length: {low: 2,
             high: 1e1}
base: &base {a: 1, b: 2}
more: {<<: *base, b: 3}
day: 2024-01-01
"""

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.floats(allow_nan=False)
    | st.text(
        st.characters(exclude_characters="\x85\u2028\u2029\ufeff", exclude_categories=["Cc", "Cs"])
    )
)
keys = st.text("abk1e-", min_size=1)
number_like = st.from_regex(r"[-+]?[0-9._:xob]{1,6}(e[-+]?[0-9]{1,2})?", fullmatch=True)
data = st.recursive(
    scalars | number_like,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
)


def test_every_value_has_a_line() -> None:
    document = read_document(TEXT, "x.yaml")
    for path, line in (
        (("tree",), 3),
        (("tree", "[0]"), 4),
        (("tree", "[0]", "length", "high"), 6),
        (("none",), 1),
    ):
        assert document.location(path) == f"x.yaml:{line}"
    assert document.data == {
        "name": "x",
        "tree": [{"policy": "chain", "length": {"low": 2, "high": 10.0}}],
        "base": {"a": 1, "b": 2},
        "more": {"a": 1, "b": 3},
        "day": "2024-01-01",
    }


@given(st.dictionaries(keys, data, max_size=5))
@settings(deadline=None, max_examples=200)
def test_what_is_written_is_read_back(mapping: dict[str, Any]) -> None:
    assert read_document(write_document(mapping), "x").data == mapping


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "f:1: the file is empty; give at least a name and objectives"),
        ("a: 1\nb:\n  c: 1\n  c: 2\n", "f:4: b.c: given twice, first in line 3; remove one of the two"),
        ("a: 1\n1: 2\n", "f:2: the key 1 is not a string; put it in quotes"),
        ("a: {yes: 2}\n", "f:1: a: the key yes is not a string; put it in quotes"),
        ("? [1, 2]\n: 2\n", "f:1: the key a list or mapping is not a string; put it in quotes"),
        ("a: 1\nb: !!python/object:os.system x\n",
         "f:2: b: the tag tag:yaml.org,2002:python/object:os.system is not allowed; use plain YAML"),
        ("a: !!set {b, c}\n", "f:1: a: the tag tag:yaml.org,2002:set is not allowed; use plain YAML"),
        ("a: !mine [b]\n", "f:1: a: the tag !mine is not allowed; use plain YAML"),
        ("a: 1\nb: c: d\n", "f:2: not valid YAML: mapping values are not allowed here"),
        ("a: [1\n", "f:2: not valid YAML: expected ',' or ']', but got '<stream end>'"),
        ("a: *nobody\n", "f:1: not valid YAML: found undefined alias 'nobody'"),
        ("a: 1\n---\nb: 2\n", "f:2: not valid YAML: but found another document"),
        ("a: &a [*a]\n", "f:1: nested too deeply, or an alias that contains itself"),
        ("[" * 5000, "f:1: nested too deeply, or an alias that contains itself"),
    ],
)  # fmt: skip
def test_refusals(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_document(text, "f")
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12), ("-7", -7), ("+3", 3), ("0", 0), ("0xff", 255), ("0.5", 0.5), (".5", 0.5), ("-.5", -0.5),
        ("1.", 1.0), ("1e3", 1000.0), ("1.5e3", 1500.0), (".5e1", 5.0), ("1.5e-3", 0.0015), ("-1E+2", -100.0),
        (".inf", math.inf), ("-.inf", -math.inf), ("true", True), ("FALSE", False), ("~", None), ("null", None),
        ("2024-01-01", "2024-01-01"), ("1.2.3", "1.2.3"), ("256x256", "256x256"), ("y", "y"), ("none", "none"),
        ("'0200'", "0200"), ('"1:30"', "1:30"), ("'no'", "no"), ("!!str 1_000", "1_000"),
    ],
)  # fmt: skip
def test_a_scalar_means_what_it_looks_like(text: str, value: object) -> None:
    found = read_document(f"a: {text}\n", "f").data["a"]
    assert (type(found), found) == (type(value), value)


@pytest.mark.parametrize(
    "text",
    ["1:30", "0:30", "-1:30", "1:30:00", "1:30.5", "0200", "0123", "-017", "089", "00", "01.5", "01e3", "1_000",
     "1_000.5", "2024_01_01", "0b101", "0o17", "0x_ff", "!!int 0123", "!!int x", "!!int ''", "!!float 1_0",
     "yes", "No", "ON", "off", "!!bool maybe"],
)  # fmt: skip
def test_a_scalar_that_programs_read_differently_is_refused(text: str) -> None:
    """YAML 1.1 reads 1:30 as 90, 0200 as 128 and no as false; YAML 1.2 does not."""
    with pytest.raises(ConfigError) as caught:
        read_document(f"a:\n  b: [1, {text}]\n", "f")
    assert (caught.value.location, caught.value.path) == ("f:2", ("a", "b", "[1]"))
    assert f" {text.rpartition(' ')[2].strip(chr(39))} " in caught.value.problem
    assert "in quotes" in caught.value.problem


def test_the_presets_are_read_alike_by_both_parsers() -> None:
    """presets.yaml is read by libyaml, which is quick and has YAML 1.1's scalars."""
    text = files("search_spaces").joinpath("presets.yaml").read_text("utf-8")
    assert read_document(text, "presets.yaml").data == yaml.safe_load(text)


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^f:1: not valid YAML: "):
        read_document(b"a: \xff\xfe\xfa", "f")


def test_a_document_that_would_take_minutes_to_read_is_refused() -> None:
    values = ", ".join(["x"] * (MAX_LENGTH // 3 + 1))
    with pytest.raises(ConfigError, match=f"{MAX_LENGTH} are the limit"):
        read_document(f"a: [{values}]", "f")


def test_aliases_cannot_unfold_without_end() -> None:
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    bomb += "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9))
    with pytest.raises(
        ConfigError, match=f"expands to more than {MAX_VALUES} values; use fewer aliases$"
    ):
        read_document(bomb, "f")


def test_overrides_replace_and_add() -> None:
    document = read_document(TEXT, "x.yaml")
    changed = document.with_override("tree.0.length.low", 5)
    assert changed.data["tree"][0]["length"] == {"low": 5, "high": 10.0}
    assert changed.location(("tree", "[0]", "length", "low")) == "--set"
    assert changed.location(("tree", "[0]", "length", "high")) == "x.yaml:6"
    assert document.with_override("budget.trials", 3).data == {
        **document.data,
        "budget": {"trials": 3},
    }
    replaced = document.with_override("tree", [1, {"a": 2}])
    assert replaced.data["tree"] == [1, {"a": 2}]
    assert replaced.location(("tree", "[1]", "a")) == "--set"


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("tree.1.length", "--set: tree.1: index out of range; indices: 0 to 0"),
        ("tree.length", "--set: tree.length: index out of range; indices: 0 to 0"),
        ("name.first", "--set: name.first: name is 'x', a scalar without keys"),
    ],
)
def test_overrides_of_missing_places(key: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_document(TEXT, "x.yaml").with_override(key, 1)
    assert str(caught.value) == message


def test_errors_get_the_line_of_the_key() -> None:
    document = read_document("a:\n  b: 1\n", "f")
    for path, where in ((("a", "b"), "f:2: a.b"), (("a", "c"), "f:1: a.c"), ((), "f:1")):
        with pytest.raises(ConfigError) as caught, document.locate_errors():
            raise ConfigError(path, "is wrong")
        assert str(caught.value) == f"{where}: is wrong"


def test_errors_survive_a_process_border() -> None:
    error = ConfigError(("a", "[0]", "b"), "is wrong", "f:3")
    assert str(pickle.loads(pickle.dumps(error))) == str(error) == "f:3: a[0].b: is wrong"


def test_differences_have_the_keys_of_overrides() -> None:
    before = {"a": [{"low": 1}, {"low": 2}], "b": {"c": None, "d": [1]}, "same": {"x": [1, 2]}}
    after = {
        "a": [{"low": 1}, {"low": 3}],
        "b": {"c": 4, "d": [1, 2]},
        "same": {"x": [1, 2]},
        "new": {"e": 5},
    }
    found = differences(before, after)
    assert found == {
        "a.1.low": (2, 3),
        "b.c": (None, 4),
        "b.d": ([1], [1, 2]),
        "new": (None, {"e": 5}),
    }
    document = Document(before, {(): "f:1"})
    for key, (_, value) in found.items():
        document = document.with_override(key, value)
    assert document.data == after
    text = describe_differences(found)
    for part in ("a.1.low was 2, is 3", "b.c was not given, is 4"):
        assert part in text


def test_long_differences_are_shortened() -> None:
    text = describe_differences({f"key{index}": ("x" * 1000, index) for index in range(9)})
    assert "key4" in text
    assert "key5" not in text
    assert "4 more" in text
    assert len(text) < 1000
    was, _, now = describe_differences({"key": ("x" * 1000, "x" * 1001)}).partition(", is ")
    assert was.removeprefix("key was ") != now
