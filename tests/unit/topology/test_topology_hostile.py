"""Hostile YAML is refused before it costs anything, with its line."""

import contextlib
import time
from functools import cache
from pathlib import Path

import pytest
from hypothesis import strategies as st

from harness.documents import FILES, lab
from harness.suite import for_all
from lcm.model.base.errors import Invalid, Refused, TooLarge
from lcm.model.topology.lab import parse_lab, rewrite
from lcm.model.topology.lab_text import LIMITS, MAX_BYTES, read_lab_text

MANY = 1_000_000
ROW = b"- [a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a]\n"

BOMB = b"a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: [*b,*b,*b,*b,*b,*b,*b,*b,*b]\n"
HOSTILE = {
    "alias bomb": (BOMB, "line 1: a", "anchor 'a'"),
    "alias": (b"a: *b\n", "line 1: a", "alias 'b'"),
    "anchor on a text": (b"lab:\n  title: &t x\n", "line 2: lab.title", "anchor 't'"),
    "merge key": (b"a: 1\n<<: {b: 1}\n", "line 2", "merge key"),
    "python tag": (b"a: 1\nb: !!python/object/apply:os.system ['x']\n", "line 2: b", "tag:yaml.org,2002:python/object"),
    "own tag": (b"a:\n- !secret x\n", "line 2: a[0]", "tag '!secret'"),
    "deep list": (b"[" * MANY, "line 1: [0][0]", f"more than {LIMITS.depth} deep"),
    "deep mapping": (b"{a: " * MANY, "line 1: a.a", f"more than {LIMITS.depth} deep"),
    "deep dashes": (b"- " * MANY, "line 1: [0]", f"more than {LIMITS.depth} deep"),
    "deep keys": (b"? " * MANY, "line 1", "a key that is a list or a mapping"),
    "deep stairs": (b"".join(b" " * n + b"a:\n" for n in range(500)), "line 25", f"more than {LIMITS.depth} deep"),
    "long text": (b"a: 1\nb: " + b"x" * (LIMITS.scalar_length + 1), "line 2: b", "characters"),
    "long key": (b'? "' + b"x" * (LIMITS.scalar_length + 1) + b'"\n', "line 1", "characters"),
    "long list": (b"[" + b"a," * MANY, f"line 1: [{LIMITS.members}]", "entries in one place"),
    "long mapping": (b"".join(b"k%d: v\n" % n for n in range(MANY // 10)), "line", "entries in one place"),
    "many lists": (ROW * 9_999, "line", "things in one file"),
    "long name": (b"a: &" + b"b" * MANY + b" c\n", "line 1: a", "…"),
    "same key twice": (b"lab: {}\nnodes: []\nlab: {}\n", "line 3", "the key 'lab' stands here twice"),
    "same key twice, quoted": (b"nodes:\n- a: 1\n  'a': 2\n", "line 3: nodes[0]", "the key 'a' stands here twice"),
    "list as a key": (b"a: 1\n[b, c]: d\n", "line 2", "a key that is a list or a mapping"),
    "two documents": (b"a: 1\n---\nb: 2\n", "line 2", "second document"),
    "many documents": (b"--- a\n" * MANY, "line 2", "second document"),
    "nothing": (b"", "line 1", "empty"),
    "only a comment": (b"# x\n", "line 1", "empty"),
    "a zero byte": (b"a: 1\nb: \x00\n", "line 2", "U+0000"),
    "an escape character": (b"a: 1\r\nb: \x1b[31m\r\n", "line 2", "U+001B"),
    "a delete character": (b"\x7f", "line 1", "U+007F"),
    "not UTF-8": (b"a: 1\nb: \xff\n", "line 2", "0xFF is not UTF-8"),
    "latin 1": ("a: 1\n\nb: ü\n".encode("latin-1"), "line 3", "0xFC is not UTF-8"),
    "UTF-16": ("a: 1\n".encode("utf-16"), "line 1", "is not UTF-8"),
    "half a character": (b"a: \xe2\x82", "line 1", "is not UTF-8"),
    "lone surrogate": (b"a: \xed\xa0\x80", "line 1", "is not UTF-8"),
    "open quote": (b'a: 1\nb: "' + b"x\n" * (MANY // 2), "line", "quoted scalar"),
    "open list": (b"a: [b\nc: d\n", "line 2", "flow sequence"),
    "a tab as indentation": (b"a:\n\tb: c\n", "line 2", "cannot start any token"),
    "a key without room": (b"a: b: c\n", "line 1", "mapping values are not allowed"),
    "unknown directive": (b"%YAML 9.9\n---\na: 1\n", "line 1", "incompatible YAML document"),
    "many directives": (
        b"".join(b"%%TAG !%d! b\n" % n for n in range(20_000)) + b"---\n",
        "line 17",
        "%TAG directives",
    ),
    "placeholder in a flow list": (b"tags: [serial:${PORT_X}]\n", "line 1", "flow sequence"),
}


@cache
def honest() -> float:
    """Measure what the largest honest file costs to read, in seconds of this processor: most others cost far less."""
    began = time.process_time()
    read_lab_text(ROW * (LIMITS.events // 23 - 1))
    return time.process_time() - began


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_yaml_is_refused_in_no_time_with_its_line(name: str) -> None:
    data, path, problem = HOSTILE[name]
    bar = 4 * honest()
    began = time.process_time()
    with pytest.raises(Invalid) as raised:
        parse_lab(data)
    took = time.process_time() - began
    (fault,) = raised.value.faults
    assert fault.path.startswith(path)
    assert problem in fault.problem
    assert fault.remedy
    assert len(str(fault)) < 1_000
    assert took < bar


def test_a_file_of_faults_is_told_the_first_hundred() -> None:
    with pytest.raises(Invalid) as raised:
        parse_lab(lab(*["- x"] * 500))
    assert len(raised.value.faults) == 101
    assert raised.value.faults[-1].problem == "and 400 faults more"


def test_a_hundred_megabytes_are_refused_unread() -> None:
    data = b"a" * 100_000_000
    bar = honest()
    began = time.process_time()
    with pytest.raises(TooLarge, match=f"100000000 bytes; at most {MAX_BYTES}"):
        rewrite(data, {})
    assert time.process_time() - began < bar


def test_what_is_within_the_limits_is_read() -> None:
    members = b"- x\n" * LIMITS.members
    deep = b"[" * (LIMITS.depth - 1) + b"]" * (LIMITS.depth - 1)
    read_lab_text(b"a:\n" + members + b"b: " + b"x" * LIMITS.scalar_length + b"\nc: " + deep + b"\n")


@pytest.mark.parametrize("text", ["%YAML 1.1\n---\n{}\n", "---\n{}\n", "{}\n...\n", "# c\n\n{}", "\ufeff{}\n"])
def test_one_document_may_be_marked_as_such(text: str) -> None:
    read_lab_text(text.encode())


@for_all(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    _read_or_refuse(data)


@for_all(st.text(st.sampled_from("ab:- \n\r\t\"'#&*!|>{}[],?%@`~\\é🙂\u2028\x85\ufeff$PORT_"), max_size=60))
def test_any_text_of_yaml_signs_is_read_or_refused(text: str) -> None:
    _read_or_refuse(text.encode())


@for_all(st.sampled_from(FILES), st.data())
def test_a_damaged_topology_is_read_or_refused(path: Path, choice: st.DataObject) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(choice.draw(st.integers(1, 4))):
        place = choice.draw(st.integers(0, len(data) - 1))
        data[place : place + choice.draw(st.integers(0, 3))] = choice.draw(st.binary(max_size=3))
    _read_or_refuse(bytes(data))


def _read_or_refuse(data: bytes) -> None:
    with contextlib.suppress(Refused):
        names = parse_lab(data).port_template
        rewrite(data, {name: 2000 + number for number, name in enumerate(names)})
