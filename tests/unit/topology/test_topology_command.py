"""`make topologies DIR=…`."""

from pathlib import Path

import pytest

from harness.documents import FILES, lab, node
from lcm.cli.documents import topologies


def test_the_projects_own_topologies_are_sound(capsys: pytest.CaptureFixture[str]) -> None:
    assert topologies.main([str(FILES[0].parent)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["file", "schema", "nodes", "needs", "ports", "verdict"]
    assert len(lines) == len(FILES) + 2
    assert all(line.endswith("ok") for line in lines[1:-1])
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


def test_needs_name_the_definitions_nobody_knows() -> None:
    data = lab(node("serial:5041"), node(label="R2", number=1)).replace(b"iosv", b"mock-server", 1)
    row = topologies.check_file("x.yaml", data)
    assert row == ("x.yaml", "0.3.0", "2", "1 CPU 0.5 GB 0 GB disk + mock-server", "1", "ok")
