"""Files of documents: what is read, what is not, and on which line."""

import json
from typing import Any

import pytest
from hypothesis import strategies as st

from harness.suite import for_all
from lcm.cli.documents import texts
from lcm.cli.documents.texts import Flaw, ParsedDocument, read_documents, write_document
from lcm.cli.output.render import UNSAFE
from lcm.model.base.errors import Fault


def flaws(text: str | bytes) -> list[tuple[int, str, str]]:
    found = read_documents(text.encode() if isinstance(text, str) else text)[1]
    return [(flaw.line, flaw.fault.path, flaw.fault.problem) for flaw in found]


def sound(text: str) -> list[ParsedDocument]:
    found, wrong = read_documents(text.encode())
    assert not wrong
    return found


def only(text: str) -> Any:
    (one,) = sound(f"v: {text}")
    return one.value["v"]


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("no", "no"),
        ("on", "on"),
        ("yes", "yes"),
        ("true", True),
        ("False", False),
        ("~", None),
        ("", None),
        ("12:30", "12:30"),
        ("2026-11-02T09:00:00Z", "2026-11-02T09:00:00Z"),
        ("2026-11-02", "2026-11-02"),
        ("0x1F", "0x1F"),
        ("1_000", "1_000"),
        ("42", 42),
        ("-7", -7),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        (".5", 0.5),
        ('"42"', "42"),
        ("'true'", "true"),
        (".nan", ".nan"),
        ("=", "="),
        ("2.9.1", "2.9.1"),
    ],
)
def test_text_without_quotes_means_what_json_and_yaml_1_2_take_it_for(text: str, want: object) -> None:
    got = only(text)
    assert got == want
    assert type(got) is type(want)


def test_several_documents_stand_in_one_file_and_empty_ones_are_left_out() -> None:
    found = sound("---\n# nothing\n---\na: 1\n---\n---\nb: 2\n...\n")
    assert [(one.value, one.place.line) for one in found] == [({"a": 1}, 4), ({"b": 2}, 7)]


def test_a_file_without_documents_holds_none() -> None:
    assert read_documents(b"") == ([], [])
    assert read_documents(b"# a comment\n\n") == ([], [])


def test_a_byte_order_mark_is_no_content() -> None:
    assert [one.value for one in sound("\ufeffa: 1")] == [{"a": 1}]


def test_json_is_read_as_json_writes_it() -> None:
    value = {"a": [1, 2.5, None, True], "b": {"c": 'é 😀 \\ / " \n\t', "d": "\\ud83d"}}
    for text in (json.dumps(value), json.dumps(value, indent="\t"), json.dumps(value, ensure_ascii=False)):
        assert [one.value for one in sound(text)] == [value]


def test_a_list_as_get_writes_it_is_taken_apart() -> None:
    text = '{"kind": "List", "items": [\n {"kind": "A"},\n {"kind": "B"}]}'
    assert [(one.value["kind"], one.place.line) for one in sound(text)] == [("A", 2), ("B", 3)]


@pytest.mark.parametrize("text", ["just text", "[1, 2]", "42"])
def test_a_document_that_is_no_object_is_a_flaw(text: str) -> None:
    assert flaws(text) == [(1, "document", "not an object")]


def test_the_same_key_twice_is_a_flaw_that_names_both_lines() -> None:
    assert flaws("spec:\n  a: 1\n  b: 2\n  a: 3\n") == [
        (4, "spec", "the key 'a' occurs twice, first on line 2"),
    ]


def test_every_flaw_of_a_file_is_told() -> None:
    text = "a: &x 1\nb: *x\nc: !!str 2\n---\nd: 1\nd: 2\n<<: {e: 1}\n? [f]\n: 1\n"
    assert [(line, problem) for line, _, problem in flaws(text)] == [
        (1, "an anchor"),
        (2, "an alias"),
        (3, "a tag"),
        (6, "the key 'd' occurs twice, first on line 5"),
        (7, "a merge key `<<`"),
        (8, "a key that is a list or a mapping"),
    ]


def test_an_alias_bomb_costs_no_more_than_its_bytes() -> None:
    lines = ["a0: &a0 [x, x]"] + [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 60)]
    found, wrong = read_documents("\n".join(lines).encode())
    assert len(wrong) == 60 + 2 * 59
    assert len(json.dumps(found[0].value)) < 5_000


def test_a_tab_is_named_for_what_it_is() -> None:
    (flaw,) = read_documents(b"a:\n\tb: 1\n")[1]
    assert flaw == Flaw(2, Fault("document", "a tab where YAML wants spaces", "indent with spaces"), fatal=True)


def test_what_cannot_be_parsed_is_a_flaw_and_what_stood_before_it_is_kept() -> None:
    found, wrong = read_documents(b"a: 1\n---\nb: [1\n---\nc: 1\n")
    assert [one.value for one in found] == [{"a": 1}]
    assert [(flaw.line, flaw.fatal) for flaw in wrong] == [(4, True)]


@pytest.mark.parametrize(
    ("data", "line", "problem"),
    [
        (b"a: 1\nb: \xff\n", 2, "the byte 0xFF is not UTF-8"),
        (b"a: 1\nb: \x07\n", 2, "the character U+0007 cannot stand in YAML"),
    ],
)
def test_what_is_no_text_is_named_with_its_line(data: bytes, line: int, problem: str) -> None:
    assert [(found, what) for found, _, what in flaws(data)] == [(line, problem)]


@pytest.mark.parametrize("number", ["1" + "0" * 30, "9" * 5000, str(2**63), "1e999", "-1" + "0" * 40])
def test_a_number_that_json_cannot_carry_is_a_flaw(number: str) -> None:
    (flaw,) = flaws(f"a: 1\nb: {number}\n")
    assert flaw[0] == 2
    assert "too large" in flaw[2]


def test_a_key_that_looks_like_a_number_is_text() -> None:
    assert sound(f"8080: a\n1.0: b\n{'9' * 40}: c")[0].value == {"8080": "a", "1.0": "b", "9" * 40: "c"}


def test_a_file_too_deep_or_too_large_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "nested more than" in flaws("[" * 100_000)[0][2]
    monkeypatch.setattr(texts, "MOST_EVENTS", 100)
    assert flaws("- a\n" * 200)[-1][2] == "more than 100 things in one file"
    monkeypatch.setattr(texts, "MOST_BYTES", 10)
    assert flaws("a: 1\n" * 3) == [(1, "file", "more than 0 MB")]


LINES = """\
kind: LabWorker
metadata:
  name: w1
  labels:
    lcm.io/track: ccna
    lcm: other
spec:
  aws:
    subnet_ids:
    - one
    - two
  lab_types: [CML]
"""


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("kind", 1),
        ("metadata.name", 3),
        ("metadata.labels.lcm.io/track", 5),
        ("metadata.labels.lcm", 6),
        ("spec", 7),
        ("spec.aws", 8),
        ("spec.aws.subnet_ids[1]", 11),
        ("spec.lab_types[0]", 12),
        ("spec.aws.region", 8),
        ("spec.aws.subnet_ids[7]", 9),
        ("status.phase", 1),
        ("", 1),
        ("document", 1),
    ],
)
def test_a_path_leads_to_its_line_or_to_the_nearest_above(path: str, line: int) -> None:
    assert sound(LINES)[0].line_of(path) == line


SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(
    ["no", "1e3", "0o17", "0x1F", ".5", "5.", "1_0", "12:30", "2026-11-02", "~", "null", "<<", "=", "- a", "a: b", "#"]
)
VALUES = st.recursive(SCALARS | TEXTS, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner), max_leaves=10)


@for_all(st.dictionaries(TEXTS, VALUES, min_size=1))
def test_what_is_written_is_read_as_it_was(value: dict[str, Any]) -> None:
    if value.get("kind") == "List":
        return
    text = write_document(value)
    assert not UNSAFE.search(text)
    assert [one.value for one in sound(text)] == [value]
