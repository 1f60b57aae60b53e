"""Tables that fit, ages, widths, and text that cannot write to a terminal."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import strategies as st

from harness import given
from harness.suite import for_all
from lcm.cli.output import render
from lcm.cli.output.columns import columns_of_kind
from lcm.cli.output.nouns import NOUNS, NamedObjects, find_noun, parse_one_target, parse_targets, title
from lcm.cli.output.table import Column, TextTable, fit_columns, shrink_widths
from lcm.model.kinds.registry import KINDS
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.worker import LabWorker

NOW = datetime(2026, 11, 2, 9, tzinfo=UTC)


@pytest.mark.parametrize(
    ("length", "want"),
    [
        (timedelta(seconds=-5), "0s"),
        (timedelta(seconds=45), "45s"),
        (timedelta(seconds=119), "119s"),
        (timedelta(minutes=5, seconds=59), "5m"),
        (timedelta(minutes=119), "119m"),
        (timedelta(hours=3), "3h"),
        (timedelta(hours=47), "47h"),
        (timedelta(days=2), "2d"),
        (timedelta(days=729), "729d"),
        (timedelta(days=800), "2y"),
    ],
)
def test_an_age_is_one_number_and_one_unit(length: timedelta, want: str) -> None:
    assert render.format_span(length) == want


@pytest.mark.parametrize(
    ("length", "want"),
    [
        (timedelta(seconds=-5), "0s"),
        (timedelta(seconds=119), "119s"),
        (timedelta(minutes=9, seconds=59), "10m"),
        (timedelta(minutes=119, seconds=59), "120m"),
        (timedelta(hours=3, minutes=59, seconds=58), "4h"),
        (timedelta(hours=3, minutes=20), "3h"),
        (timedelta(days=29, hours=23, minutes=59), "30d"),
    ],
)
def test_what_is_ahead_is_rounded(length: timedelta, want: str) -> None:
    assert render.format_wait(length) == want
    assert length <= timedelta() or f"(in {want})" in render.format_relative(NOW + length, NOW)


def test_an_age_that_is_not_known_is_empty() -> None:
    assert render.format_age(None, NOW) == ""
    assert render.format_moment(None) == ""


def test_a_moment_tells_its_distance_in_both_directions() -> None:
    assert render.format_relative(NOW + timedelta(hours=3), NOW) == "2026-11-02 12:00Z (in 3h)"
    assert render.format_relative(NOW - timedelta(minutes=5), NOW) == "2026-11-02 08:55Z (5m ago)"


@pytest.mark.parametrize(("text", "cells"), [("abc", 3), ("é", 1), ("日本", 4), ("e\u0301", 1), ("", 0)])
def test_a_text_takes_as_many_cells_as_the_terminal_gives_it(text: str, cells: int) -> None:
    assert render.text_width(text) == cells


@for_all(st.text(max_size=30), st.integers(1, 20))
def test_a_cut_text_is_never_wider_than_asked_and_says_that_it_is_cut(text: str, most: int) -> None:
    short = render.truncate(text, most)
    assert render.text_width(short) <= most
    assert short == text or short.endswith("…")


@for_all(st.text(max_size=50))
def test_foreign_text_cannot_command_a_terminal(text: str) -> None:
    assert not any(
        ord(one) < 32 or 0x7F <= ord(one) < 0xA0 for one in render.sanitize(text + "\x1b[2J\x9b\r\n\t\u202e")
    )


def test_json_for_a_terminal_is_still_the_same_json() -> None:
    value = {"a": "\x9b31m\u202e\x7f\n", "b": 1}
    text = render.escape_json(json.dumps(value, ensure_ascii=False))
    assert json.loads(text) == value
    assert text.isascii()


def table(rows: list[tuple[str, str, str]], room: int | None) -> list[str]:
    heads = (("NAME", 0), ("PHASE", 0), ("TRACK", 2))
    shown = [_column(head, number, rank) for number, (head, rank) in enumerate(heads)]
    return list(TextTable(shown, room).lines(rows, NOW))


def _column(head: str, number: int, rank: int) -> Column[tuple[str, str, str]]:
    return Column(head, lambda row, _: row[number], rank)


ROWS = [("w1", "READY", "ccna"), ("a-long-name", "READY_UNLICENSED", "ccnp")]


def test_a_table_with_room_shows_every_column_in_line() -> None:
    assert table(ROWS, None) == [
        "NAME         PHASE             TRACK",
        "w1           READY             ccna",
        "a-long-name  READY_UNLICENSED  ccnp",
    ]


def test_a_narrow_table_leaves_out_the_least_important_column_first() -> None:
    assert table(ROWS, 30) == ["NAME         PHASE", "w1           READY", "a-long-name  READY_UNLICENSED"]


def test_a_very_narrow_table_cuts_its_cells() -> None:
    assert table(ROWS, 20) == ["NAME       PHASE", "w1         READY", "a-long-n…  READY_UN…"]


def test_a_table_in_the_place_of_another_keeps_its_columns_when_its_cells_become_shorter() -> None:
    columns = [_column("NAME", 0, 0), _column("PHASE", 1, 1), _column("TRACK", 2, 2)]
    first = TextTable(columns, 28)
    wide = list(first.lines([("w1", "READY_UNLICENSED", "ccna-x")], NOW))
    again = list(TextTable(columns, 28, first).lines([("w1", "READY", "ccna")], NOW))
    assert wide[0] == again[0] == "NAME  PHASE"
    heading, _ = TextTable(columns, 28).lines([("w1", "READY", "ccna")], NOW)
    assert heading == "NAME  PHASE  TRACK"


def test_rows_that_come_later_keep_to_the_columns_and_the_room_there_is() -> None:
    shown = TextTable([_column("NAME", 0, 0), _column("PHASE", 1, 0), _column("TRACK", 2, 1)], 24)
    assert list(shown.lines([("w1", "READY", "ccna")], NOW)) == ["NAME  PHASE  TRACK", "w1    READY  ccna"]
    assert list(shown.lines([("a-much-longer-name", "READY", "ccna")], NOW)) == ["a-much-lo…  READY  ccna"]


@for_all(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 5)), min_size=1, max_size=8), st.integers(70, 200))
def test_what_is_kept_fits_once_cells_are_cut(shape: list[tuple[int, int]], room: int) -> None:
    sizes, ranks = [size for size, _ in shape], [rank for _, rank in shape]
    kept = fit_columns(sizes, ranks, room)
    assert {number for number, rank in enumerate(ranks) if not rank} <= set(kept)
    assert sum(shrink_widths([sizes[number] for number in kept], room)) + 2 * (len(kept) - 1) <= room


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("room", [60, 80, 160])
def test_every_kind_has_a_table_that_fits(kind: str, room: int) -> None:
    example = next(one for one in given.every() if one.kind == kind)
    shown = columns_of_kind(type(example), wide=False, with_namespace=True, with_kind=True)
    lines = list(TextTable(shown, room).lines([example], NOW))
    assert max(map(len, lines)) <= room
    assert lines[0].startswith("NAMESPACE  NAME")
    assert title(example) in lines[1]


def test_the_wide_table_of_every_kind_shows_more() -> None:
    for example in given.every():
        normal = columns_of_kind(type(example), wide=False, with_namespace=False, with_kind=False)
        assert len(columns_of_kind(type(example), wide=True, with_namespace=False, with_kind=False)) > len(normal)


def test_a_kind_goes_by_plural_singular_path_and_its_own_name() -> None:
    for each in NOUNS:
        assert {each.singular, each.plural, each.kind.plural, each.kind.name.lower()} <= each.words
        assert all(find_noun(word) is find_noun(word.upper()) is each for word in each.words)


def test_no_word_means_two_kinds() -> None:
    words = [word for each in NOUNS for word in each.words]
    assert len(words) == len(set(words))


def test_objects_are_named_in_each_of_kubectls_ways() -> None:
    worker, session = find_noun("w"), find_noun("s")
    assert parse_targets(["workers"]) == [NamedObjects(worker)]
    assert parse_targets(["w,s"]) == [NamedObjects(worker), NamedObjects(session)]
    assert parse_targets(["w", "a", "b"]) == [NamedObjects(worker, ("a", "b"))]
    assert parse_targets(["worker/a", "s/b", "w/c"]) == [
        NamedObjects(worker, ("a", "c")),
        NamedObjects(session, ("b",)),
    ]
    assert [part.noun for part in parse_targets(["all"])] == list(NOUNS)
    assert parse_one_target(["w", "a"]) == parse_one_target(["worker/a"]) == (worker, "a")
    assert worker.struct is LabWorker
    assert session.struct is LabletSession
