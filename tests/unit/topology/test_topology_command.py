"""`make topologies DIR=…`."""

from pathlib import Path

import pytest

from harness.documents import FILES, lab, node
from lcm.cli.documents import topologies
from lcm.model.topology.node_definitions import shipped_nodes


def test_the_projects_own_topologies_are_sound(capsys: pytest.CaptureFixture[str]) -> None:
    assert topologies.main([str(FILES[0].parent)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["file", "schema", "nodes", "needs", "ports", "verdict"]
    assert len(lines) == len(FILES) + 2
    assert all(line.endswith(("ok", "ok, but nobody can reach it: no node has a port tag")) for line in lines[1:-1])
    assert lines[-1] == f"{len(FILES)} files, 0 bad"


def test_one_bad_lab_is_named_with_its_line_and_fails_the_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "good.yaml").write_bytes(lab(node("serial:5041")))
    (tmp_path / "below" / "bad.yml").write_bytes(lab(node("serial:x")))
    (tmp_path / "huge.yaml").write_bytes(b"a" * 9_000_000)
    (tmp_path / "notes.txt").write_text("not a lab")
    assert topologies.main([str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "below/bad.yml" in out
    assert "refused: line 11: nodes[0].tags[0]: the port tag 'serial:x' cannot be rewritten" in out
    assert "9000000 bytes" in out
    assert out.endswith("3 files, 2 bad\n")


def test_a_folder_without_labs_is_no_success(tmp_path: Path) -> None:
    assert topologies.main([str(tmp_path)]) == 1


@pytest.mark.parametrize("arguments", [[], ["/nowhere"], ["a", "b"]])
def test_without_a_folder_it_says_how_it_is_used(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert topologies.main(arguments) == 2
    assert "make topologies DIR=" in capsys.readouterr().out


MOCK = lab(node("serial:5041"), node(label="R2", number=1)).replace(b"iosv", b"mock-server", 1)


def test_needs_name_the_definitions_nobody_knows_and_the_file_is_refused_as_it_is_when_published() -> None:
    row = topologies.check_file("x.yaml", MOCK, shipped_nodes())
    assert row[:5] == ("x.yaml", "0.3.0", "2", "1 CPU 0.5 GB 0 GB disk + mock-server", "1")
    assert "nodes[0].node_definition: the size of a 'mock-server' is not known; set cpus and ram" in row.verdict
    assert "--node-size mock-server=CPUS/MEMORY" in row.verdict


def test_sizes_that_are_given_or_set_make_a_lab_publishable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mock.yaml").write_bytes(MOCK)
    assert topologies.main([str(tmp_path)]) == 1
    assert topologies.main([str(tmp_path), "--node-size", "mock-server=2/4G/10G"]) == 0
    assert "3 CPU 4.5 GB 10 GB disk  1      ok" in capsys.readouterr().out
    assert topologies.main([str(tmp_path), "--node-size", "mock-server=2"]) == 2
    assert "write NAME=CPUS/MEMORY" in capsys.readouterr().out
    monkeypatch.setenv("NODE_SIZES", "mock-server=2/512M")
    assert topologies.main([str(tmp_path)]) == 0


def test_a_lab_that_nobody_could_reach_says_so() -> None:
    row = topologies.check_file("x.yaml", lab(node()), shipped_nodes())
    assert row.is_ok
    assert row.verdict == "ok, but nobody can reach it: no node has a port tag"
