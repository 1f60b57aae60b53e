"""Topology files into simulated labs and back: what is accepted, what is refused, what survives the journey."""

import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import strategies as st

from harness import suite
from harness.clouds import Bench, document, link, node, one, text
from lcm.sim.cml.faults import CmlRefusal
from lcm.sim.cml.topology import ALL_FILES, MAIN_FILE, NO_FILES, write_lab_file, write_topology

TOPOLOGIES = suite.TOPOLOGIES


def refused(text: str | bytes, words: str) -> None:
    bench = Bench()
    with pytest.raises(CmlRefusal, match=words) as raised:
        bench.imported(text if isinstance(text, str) else text.decode("latin-1"))
    assert raised.value.status == 400
    assert len(bench.cml.labs) == 0


def without(whole: dict[str, Any], *path: str | int) -> str:
    """Write a document without one of its parts."""
    *way, last = path
    place: Any = whole
    for step in way:
        place = place[step]
    del place[last]
    return yaml.safe_dump(whole)


def sample() -> dict[str, Any]:
    return document(node("a"), node("b"), links=[link("a/i0", "b/i0")], title="sample")


@pytest.mark.parametrize("file", TOPOLOGIES, ids=lambda file: file.stem)
def test_every_lab_of_ours_is_imported_and_survives_a_download(file: Path) -> None:
    bench = Bench()
    admin = bench.cml.users.administrator
    lab, _ = bench.cml.import_lab(file.read_bytes(), admin)
    again, _ = bench.cml.import_lab(write_lab_file(lab), admin)
    assert [found.spec for found in again.nodes.values()] == [found.spec for found in lab.nodes.values()]
    assert [found.files for found in again.nodes.values()] == [found.files for found in lab.nodes.values()]
    assert write_lab_file(again) == write_lab_file(lab)


def test_json_is_yaml() -> None:
    lab = Bench().imported('{"lab": {"version": "0.3.0"}, "nodes": [], "links": []}')
    assert (lab.title, len(lab.nodes)) == ("Lab at Sun 01:00 AM", 0)


def test_the_title_asked_for_wins_over_the_files() -> None:
    bench = Bench()
    assert bench.imported(yaml.safe_dump(sample())).title == "sample"
    assert bench.imported(yaml.safe_dump(sample()), "another").title == "another"
    for title in ("", "x" * 65):
        with pytest.raises(CmlRefusal, match="1 to 64"):
            bench.imported(yaml.safe_dump(sample()), title)


@pytest.mark.parametrize(
    "path",
    [
        ("lab",),
        ("lab", "version"),
        ("nodes",),
        ("links",),
        *[("nodes", 0, key) for key in ("id", "label", "node_definition", "x", "y")],
        *[("nodes", 0, "interfaces", 0, key) for key in ("id", "type")],
        *[("links", 0, key) for key in ("id", "n1", "i1", "n2", "i2")],
    ],
    ids=str,
)
def test_a_file_without_what_is_required_is_refused(path: tuple[str | int, ...]) -> None:
    refused(without(sample(), *path), "missing required field|which is not there")


@pytest.mark.parametrize("version", ["9.9.9", "0.3.1", "0.0.6", "", 0.3])
def test_an_unknown_version_is_refused(version: object) -> None:
    refused(yaml.safe_dump(sample() | {"lab": {"version": version}}), "Invalid topology")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"nodes": [node("a", priority=5)]}, "unknown field `priority`"),
        ({"autostart": {}}, "unknown field `autostart`"),
        ({"lab": {"version": "0.3.0", "node_staging": {}}}, "unknown field"),
        ({"lab": {"version": "0.3.0", "timestamp": 1.5}}, "unknown field `timestamp`"),
        ({"nodes": [node("a", tags=[{"serial": 5000}])]}, "tags"),
        ({"nodes": [node("a", tags=["x" * 65])]}, "tags"),
        ({"nodes": [node("a", cpu_limit=10)]}, "cpu_limit"),
        ({"nodes": [node("a", ram=0)]}, "ram"),
        ({"nodes": [node("a", x=99_999)]}, "x"),
        ({"nodes": [node("a"), node("a")], "links": []}, "used twice"),
        ({"links": [link("a/i0", "b/i9")]}, "not there"),
        ({"links": [link("a/i0", "c/i0")]}, "not there"),
        ({"links": [link("a/i0", "a/i0")]}, "different nodes"),
        ({"links": [link("a/i0", "b/i0"), link("b/i0", "a/i0")]}, "cannot be connected"),
        ({"annotations": [{"type": "circle"}]}, "type is text"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_makes_no_sense_is_refused_and_leaves_nothing(change: dict[str, Any], words: str) -> None:
    refused(yaml.safe_dump(sample() | change), words)


def test_a_mac_address_that_yaml_takes_for_a_number_is_refused() -> None:
    lab = yaml.safe_dump(document(node("a", interfaces=0)))
    for mac, fine in (('"52:54:00:00:00:01"', True), ("52:54:00:00:00:01", False)):
        written = lab.replace(
            "interfaces: []", f"interfaces: [{{id: i0, type: physical, slot: 0, mac_address: {mac}}}]"
        )
        if fine:
            assert one(Bench().imported(written), "a").interfaces[0].mac_address == "52:54:00:00:00:01"
        else:
            refused(written, "mac_address")


@pytest.mark.parametrize(
    "hostile",
    [
        "lab: &a {version: 0.3.0}\nnodes: [*a]\nlinks: []",
        "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]",
        "[" * 100_000,
        "!!python/object/apply:os.system ['true']",
        "lab: [",
        "\x00",
        "just text",
        "- a\n- b",
        "",
        "lab: {version: 0.3.0}\nnodes: []\nlinks: []\n---\nlab: {}",
    ],
    ids=["alias", "bomb", "deep", "tag", "syntax", "binary", "scalar", "list", "empty", "two documents"],
)
def test_hostile_text_is_refused_at_once(hostile: str) -> None:
    begin = time.process_time()
    refused(hostile, "Invalid topology")
    assert time.process_time() - begin < suite.here(5)


def test_a_definition_that_is_not_installed_gives_a_warning() -> None:
    bench = Bench()
    lab, warnings = bench.cml.import_lab(text(node("a", "gitlab")), bench.cml.users.administrator)
    assert warnings == ["Node definition `gitlab` is not available."]
    assert one(lab, "a").ram_mb == 1024


def test_given_smart_annotations_are_kept_for_tags_that_nodes_have() -> None:
    drawn = [{"tag": "core", "fill_color": "#123456", "unheard": 1}, {"tag": "gone"}]
    whole = document(node("a", tags=["core", "edge"])) | {"smart_annotations": drawn}
    lab = Bench().imported(yaml.safe_dump(whole))
    shown = {found["tag"]: found["fill_color"] for found in lab.smart_annotations.values()}
    assert shown == {"core": "#123456", "edge": "#00A2FF80"}
    assert all("unheard" not in found for found in lab.smart_annotations.values())


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (None, []),
        ("", [("ios_config.txt", "")]),
        ("hostname a", [("ios_config.txt", "hostname a")]),
        ({"name": "Main", "content": "x"}, [("ios_config.txt", "x")]),
        ([{"name": "a", "content": "1"}, {"name": "b"}], [("a", "1"), ("b", None)]),
        ([], []),
    ],
)
def test_a_configuration_comes_in_several_forms(given: object, kept: list[tuple[str, str]]) -> None:
    lab = Bench().imported(text(node("a", configuration=given)))
    assert [(file.name, file.content) for file in one(lab, "a").files] == kept


def test_the_api_shows_configurations_in_three_forms() -> None:
    given = [{"name": "Main", "content": "x"}, {"name": "more", "content": "y"}]
    lab = Bench().imported(text(node("a", configuration=given)))
    shown = {
        form: write_topology(lab, form)["nodes"][0].get("configuration", "absent")
        for form in (ALL_FILES, MAIN_FILE, NO_FILES)
    }
    files = [{"name": "ios_config.txt", "content": "x"}, {"name": "more", "content": "y"}]
    assert shown == {ALL_FILES: files, MAIN_FILE: "x", NO_FILES: "absent"}


ODD_TEXTS = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), max_size=60),
    st.lists(
        st.sampled_from(["", " ", "  x", "x  ", "- a", "# no", "k: v", "'", '"', "| >", "\t", "ü", "---"]), max_size=6
    ).map("\n".join),
    st.sampled_from(
        ["yes", "null", "~", "1.0", "0x1f", "2026-11-17", "1:30", "=", "<<", "*a", "&a", "!x", "%", "@", "`"]
    ),
)


@suite.for_all(ODD_TEXTS, ODD_TEXTS)
def test_a_download_says_what_the_lab_says(notes: str, configuration: str) -> None:
    whole = document(node("a", configuration=[{"name": "f", "content": configuration}]), title="t")
    whole["lab"]["notes"] = notes
    read = yaml.safe_load(write_lab_file(Bench().imported(yaml.safe_dump(whole, allow_unicode=False))))
    assert read["lab"]["notes"] == notes
    assert read["nodes"][0]["configuration"][0]["content"] == configuration


def test_a_download_reads_well() -> None:
    lab = Bench().imported(text(node("a", configuration="hostname a\nend", tags=["serial:5000"]), node("ü")))
    written = write_lab_file(lab)
    assert "    content: |-\n      hostname a\n      end\n" in written
    assert "tag: serial:5000" in written
    assert "label: ü" in written
    assert list(yaml.safe_load(written)) == ["annotations", "smart_annotations", "nodes", "links", "lab"]
    assert yaml.safe_load(written)["nodes"][0]["interfaces"] == [
        {"id": "i0", "label": "p0", "type": "physical", "mac_address": None, "slot": 0}
    ]
