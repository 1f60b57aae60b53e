"""`lcm doctor` on machines that are well, and on machines that are not."""

import asyncio
import json
import os
import socket
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner, Result

from harness import given
from harness.api_world import Shell
from harness.commands import NAMED, variables_environment
from harness.servers import LOOPBACK, EtcdServer, free_port
from lcm.cli.fleet import doctor
from lcm.cli.fleet import doctor as doctor_checks
from lcm.cli.fleet import doctor as doctor_reach
from lcm.cli.fleet.doctor import CheckState, DoctorCheck, check_clock, check_data_folder
from lcm.cli.main import app
from lcm.cli.output.connection import ApiContext
from lcm.compose import api, process
from lcm.model.access.identity import Caller, Role
from lcm.model.access.secret import Secret
from lcm.model.kinds.settings import SystemSettingsSpec
from lcm.model.money.prices import SHIPPED_ON
from lcm.settings.load import Settings, load_settings
from lcm.settings.values import VARIABLES

NOW = datetime(2026, 11, 2, 9, tzinfo=UTC)
ADMIN = Caller(name="ada", role=Role.ADMIN)
OURS = ("LCM_", "ETCD_", "CML_", "AWS_", "EC2_", "WORKER_", "SCHEDULER_", "CONTROL_PLANE_")
NOBODY = {"CONTROL_PLANE_API_URL": f"http://{LOOPBACK}:1", "ARTIFACTS_S3_ENDPOINT": f"http://{LOOPBACK}:1"}
"""Where nobody answers, in place of what variables name as examples."""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Begin with an empty folder and an environment that says nothing."""
    for name in tuple(os.environ):
        if name in NAMED or name.startswith(OURS):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str, **said: str) -> Result:
    return CliRunner().invoke(app, ["doctor", *arguments], env=said, catch_exceptions=False)


def report(**said: str) -> Any:
    return json.loads(run("-o", "json", **said).stdout)


def states(found: Any) -> dict[str, str]:
    return {one["name"]: one["state"] for one in found["checks"]}


def values(found: Any) -> dict[str, tuple[str, str]]:
    return {one["variable"]: (one["value"], one["source"]) for one in found["settings"]}


def failed(found: doctor.DoctorReport) -> list[DoctorCheck]:
    return [check for check in found.checks if check.state is CheckState.FAIL]


def test_a_fresh_machine_is_well() -> None:
    result = run()
    assert result.exit_code == 0, result.stdout
    assert "does not exist yet" in result.stdout
    assert not Path(".data").exists(), "looking must not make anything"


def test_what_only_an_extra_needs_may_be_missing() -> None:
    (well,) = doctor.check_packages(["msgspec>=0.18", "no-such-package; extra == 'optimise'"])
    assert (well.state, well.detail.endswith("not installed, and optional: no-such-package")) == (CheckState.OK, True)
    _, missing = doctor.check_packages(["msgspec", "no-such-package<2"])
    assert (missing.state, missing.detail) == (CheckState.FAIL, "missing: no-such-package")


def test_problems_come_first_and_settings_after_what_was_found() -> None:
    prices = priced(datetime.now(UTC).date())
    lines = run(ETCD_ENDPOINT="etcd:2379", LOG_LEVEL="LOUD", PRICE_BOOK=prices).stdout.splitlines()
    assert lines[1] == "2 failed checks, 1 warning"
    words = [line.split(" ")[0] for line in lines if line.split(" ")[0] in {"fail", "warn", "ok", "VARIABLE"}]
    assert words == sorted(words, key=["fail", "warn", "ok", "VARIABLE"].index)
    assert lines[-1] == "2 failed checks, 1 warning: see the top"
    assert run(PRICE_BOOK=prices).stdout.splitlines()[1] == "no problems found"


def priced(day: date) -> str:
    """Write prices of a day."""
    Path("prices.toml").write_text(f"as_of = {day}\n", encoding="utf-8")
    return "prices.toml"


def test_old_prices_are_warned_of_with_their_date_and_what_to_do() -> None:
    now = datetime(2027, 3, 1, tzinfo=UTC)
    old = doctor.check_prices(Settings(), now)
    assert (old.state, str(SHIPPED_ON) in old.detail, "PRICE_BOOK" in old.remedy) == (CheckState.WARN, True, True)
    fresh = Settings(price_book=Path(priced(date(2027, 1, 1))))
    assert doctor.check_prices(fresh, now).state is CheckState.OK
    assert doctor.check_prices(fresh, now + timedelta(days=400)).state is CheckState.WARN


def test_every_variable_is_shown_with_its_value_and_its_source() -> None:
    said = variables_environment(*NAMED) | NOBODY
    found = values(report(**said))
    assert set(found) == {one.name for one in VARIABLES}
    for name, one in NAMED.items():
        shown = NOBODY.get(name, one.shown)
        assert found[name] == (shown, f"environment {name}")


@pytest.mark.parametrize("form", ["table", "json", "yaml"])
def test_no_secret_is_shown_in_any_form(form: str) -> None:
    written = run("-o", form, **variables_environment(*NAMED) | NOBODY).output
    assert "AKIA" not in written
    assert "hush" not in written
    assert "BestFit" in written


def test_yaml_says_what_json_says() -> None:
    as_yaml = msgspec.yaml.decode(run("-o", "yaml", LOG_LEVEL="debug").stdout)
    as_json = report(LOG_LEVEL="debug")
    assert as_yaml["settings"] == as_json["settings"]
    assert set(as_yaml) == set(as_json) == {"version", "python", "file", "checks", "settings"}


@pytest.mark.parametrize("columns", [50, 80, 200])
def test_it_fits_the_terminal(columns: int) -> None:
    said = variables_environment(*NAMED) | NOBODY | {"COLUMNS": str(columns)}
    lines = run(**said).stdout.splitlines()
    wide = [line for line in lines if len(line) > columns]
    assert all(any(len(word) > columns // 2 for word in line.split()) for line in wide), (
        "addresses and paths stay whole"
    )
    assert len(wide) < 5


@pytest.mark.parametrize("columns", [50, 60])
def test_names_stay_whole_and_it_is_said_whose_settings_these_are(columns: int) -> None:
    written = run(**variables_environment(*NAMED) | NOBODY, COLUMNS=str(columns)).stdout
    assert {one.name for one in VARIABLES} <= {line.split(" ")[0] for line in written.splitlines()}
    assert "settings apply to commands in this shell" in " ".join(written.split())


def test_every_bad_value_is_named_and_the_rest_is_shown_all_the_same() -> None:
    result = run(TOTAL_CPU_CORES="lots", LOG_LEVEL="LOUD", TOTAL_MEMORY_GB="64", CML_ADMIN_PASSWORD="hush\nhush")
    assert result.exit_code == 1
    for words in (
        "fail  TOTAL_CPU_CORES",
        "fail  LOG_LEVEL",
        "correct it, or leave it out",
        "fail  CML_ADMIN_PASSWORD",
    ):
        assert words in result.stdout
    assert "hush" not in result.output
    found = values(report(TOTAL_CPU_CORES="lots", TOTAL_MEMORY_GB="64"))
    assert found["TOTAL_CPU_CORES"] == ("32", "default")
    assert found["TOTAL_MEMORY_GB"][0] == "64"


def test_what_may_be_a_mistake_is_a_warning() -> None:
    result = run(ETCD_ENDPOINT="etcd:2379")
    assert result.exit_code == 0
    assert "warn  ETCD_ENDPOINT" in result.stdout


def test_the_file_and_what_it_says_are_named(home: Path) -> None:
    file = home / "mine.toml"
    file.write_text("idle_threshold_minutes = 45\ncml_admin_password = 'hush'\n")
    file.chmod(0o644)
    found = report(LCM_CONFIG=str(file))
    assert found["file"] == str(file)
    assert values(found)["IDLE_THRESHOLD_MINUTES"] == ("45", f"file {file}")
    assert any("others may read CML_ADMIN_PASSWORD" in one["detail"] for one in found["checks"])
    file.chmod(0o600)
    assert not any("others may read" in one["detail"] for one in report(LCM_CONFIG=str(file))["checks"])


def test_a_file_in_the_working_folder_is_found(home: Path) -> None:
    (home / "lcm.toml").write_text("lcm_port = 8031\n")
    found = report()
    assert found["file"] == "lcm.toml"
    assert values(found)["LCM_PORT"] == ("8031", "file lcm.toml")


def test_a_data_folder_that_cannot_be_written_fails(home: Path) -> None:
    (home / "taken").write_text("a file")
    assert check_data_folder(home / "taken").state is CheckState.FAIL
    assert check_data_folder(home / "taken" / "inside").state is CheckState.FAIL
    result = run(LCM_DATA_DIR=str(home / "taken" / "inside"))
    assert result.exit_code == 1
    assert "choose another folder with LCM_DATA_DIR" in result.stdout


@pytest.mark.parametrize(
    "command", [["doctor"], ["backup", "saved"], ["token", "create", "ada", "--role", "admin", "--offline"]]
)
def test_a_data_folder_that_cannot_be_looked_into_is_told(home: Path, command: list[str]) -> None:
    unusable = "x" * 300  # root may enter any folder, but nobody one with such a name
    result = Shell(home, LCM_DATA_DIR=unusable).lcm(*command)
    assert result.exit_code == 1
    assert "check its path, owner and permissions" in " ".join(result.output.split())


def test_a_data_folder_that_is_not_there_yet_is_well(home: Path) -> None:
    found = check_data_folder(home / "a" / "b")
    assert found.state is CheckState.OK
    assert "does not exist yet" in found.detail
    assert "GB free" in found.detail


def test_a_data_folder_that_others_can_look_into_is_told(home: Path) -> None:
    home.chmod(0o755)
    found = check_data_folder(home)
    assert (found.state, found.remedy) == (CheckState.WARN, f"chmod 700 {home}")


def test_where_lab_files_are_kept_is_looked_at_without_keeping_any(home: Path) -> None:
    found = report(ARTIFACTS_DIR=str(home / "kept"))
    assert states(found)["artifacts"] == "ok"
    assert not (home / "kept").exists()
    (home / "kept").mkdir(mode=0o700)
    (home / "kept" / "tmp").write_text("a file")
    result = run(ARTIFACTS_DIR=str(home / "kept"))
    assert result.exit_code == 1
    assert "tmp cannot be written" in " ".join(result.stdout.split())
    result = run(ARTIFACTS_DIR=str(home / "kept" / "tmp"))
    assert "choose another folder with ARTIFACTS_DIR" in result.stdout


def test_a_bucket_that_does_not_answer_fails_with_what_to_look_at() -> None:
    said = {"ARTIFACTS_S3_BUCKET": "labs", "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "hush"} | NOBODY
    (check,) = (one for one in report(**said)["checks"] if one["name"] == "artifacts")
    assert check["state"] == "fail"
    assert "ARTIFACTS_S3_ENDPOINT" in check["remedy"]
    assert "hush" not in check["detail"]


def test_little_room_is_told(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_checks, "_LITTLE_BYTES", 1 << 62)
    assert check_data_folder(home).state is CheckState.WARN
    monkeypatch.setattr(doctor_checks, "_TOO_LITTLE_BYTES", 1 << 62)
    assert check_data_folder(home).state is CheckState.FAIL


@pytest.mark.parametrize(
    ("now", "elsewhere", "written", "want"),
    [
        (NOW, None, None, CheckState.OK),
        (NOW, NOW + timedelta(seconds=20), NOW - timedelta(days=9), CheckState.OK),
        (NOW, NOW + timedelta(minutes=1), None, CheckState.WARN),
        (NOW, NOW - timedelta(hours=1), None, CheckState.FAIL),
        (NOW, None, NOW + timedelta(hours=1), CheckState.WARN),
        (NOW.replace(year=1970), None, None, CheckState.FAIL),
    ],
)
def test_a_clock_is_held_against_others(
    now: datetime, elsewhere: datetime | None, written: datetime | None, want: CheckState
) -> None:
    found = check_clock(now, elsewhere=elsewhere, written=written)
    assert found.state is want
    assert bool(found.remedy) is (want is not CheckState.OK)


def test_a_missing_package_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "requires", lambda _: ["msgspec>=0.18", "no-such-package ; extra"])
    found = list(doctor_checks.check_packages())
    assert found[0].detail.startswith("msgspec ")
    assert (found[1].state, found[1].detail) == (CheckState.FAIL, "missing: no-such-package")


def test_a_damaged_store_fails(home: Path) -> None:
    (home / ".data").mkdir()
    (home / ".data" / "lcm.db").write_bytes(b"my holiday photos" * 100)
    result = run()
    assert result.exit_code == 1
    assert "no SQLite file" in result.stdout.replace("\n", " ")
    assert (home / ".data" / "lcm.db").read_bytes().startswith(b"my holiday photos")


async def test_what_runs_is_found_well_and_its_settings_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    async with process.run_embedded(load_settings({"LCM_PORT": "0", "LCM_DATA_DIR": ".data"})) as it:
        token, _ = await it.running.tokens.make("ada", Role.ADMIN)
        spec = msgspec.convert({"idle": {"threshold_minutes": 44}}, SystemSettingsSpec)
        await it.running.control.plane_for(ADMIN).create(given.changed(given.settings(), {"spec": spec}))
        monkeypatch.setenv("LCM_URL", it.running.url)
        monkeypatch.setenv("LCM_TOKEN", token.reveal())
        found = await doctor.run_checks()
    assert not failed(found)
    told = "\n".join(check.detail for check in found.checks)
    assert "signed in as ada, role admin" in told
    assert "1 objects, revision " in told
    assert token.reveal() not in str(found)
    by_name = {one.variable: one for one in found.settings}
    assert (by_name["IDLE_THRESHOLD_MINUTES"].value, by_name["IDLE_THRESHOLD_MINUTES"].source) == (
        "44",
        "settings object",
    )


async def test_without_an_api_the_settings_object_is_read_from_the_store() -> None:
    async with process.run_embedded(load_settings({"LCM_PORT": "0", "LCM_DATA_DIR": ".data"})) as it:
        spec = msgspec.convert({"scheduler": {"strategy": "Random"}}, SystemSettingsSpec)
        await it.running.control.plane_for(ADMIN).create(given.changed(given.settings(), {"spec": spec}))
    found = await doctor.run_checks()
    by_name = {one.variable: one for one in found.settings}
    assert (by_name["SCHEDULER_STRATEGY"].value, by_name["SCHEDULER_STRATEGY"].source) == ("Random", "settings object")


async def test_a_token_that_is_not_accepted_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    async with process.run_embedded(load_settings({"LCM_PORT": "0", "LCM_DATA_DIR": ".data"})) as it:
        monkeypatch.setenv("LCM_URL", it.running.url)
        monkeypatch.setenv("LCM_TOKEN", "lcm_hush")
        found = await doctor.run_checks()
    assert [check.name for check in failed(found)] == ["api"]
    assert "hush" not in str(found)


async def test_a_user_who_may_not_see_settings_is_shown_the_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    async with process.run_embedded(load_settings({"LCM_PORT": "0", "LCM_DATA_DIR": ".data"})) as it:
        token, _ = await it.running.tokens.make("eve", Role.USER)
        await it.running.control.plane_for(ADMIN).create(given.settings())
        monkeypatch.setenv("LCM_URL", it.running.url)
        monkeypatch.setenv("LCM_TOKEN", token.reveal())
        found = await doctor.run_checks()
    assert not failed(found)


async def test_controllers_key_is_tried_where_there_is_no_context(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"LCM_PORT": "0", "LCM_DATA_DIR": ".data", "CONTROL_PLANE_API_KEY": "a-long-random-text,one-before-that-one"}
    async with process.run_embedded(load_settings(said)) as it:
        monkeypatch.setenv("CONTROL_PLANE_API_KEY", said["CONTROL_PLANE_API_KEY"])
        monkeypatch.setenv("CONTROL_PLANE_API_URL", it.running.url)
        found = await doctor.run_checks()
    assert not failed(found)
    assert any("role service" in check.detail for check in found.checks)


def test_an_api_that_does_not_run_fails_with_what_to_do() -> None:
    result = run(LCM_URL=f"http://{LOOPBACK}:{free_port()}", LCM_TOKEN="hush")
    assert result.exit_code == 1
    assert "lcm up" in result.stdout
    assert "hush" not in result.output


def test_a_context_that_cannot_be_used_fails() -> None:
    result = run(LCM_URL="not an address", LCM_TOKEN="hush")
    assert result.exit_code == 1
    assert "LCM_URL" in result.stdout


@pytest.fixture
def silent() -> Iterator[str]:
    """Listen, and never answer."""
    with socket.create_server((LOOPBACK, 0)) as listening:
        yield f"{LOOPBACK}:{listening.getsockname()[1]}"


def test_what_never_answers_is_not_waited_for(silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_reach, "TIME_LIMIT_SECONDS", 0.3)
    found = report(LCM_URL=f"http://{silent}", LCM_TOKEN="hush", ETCD_ENDPOINTS=silent)
    assert states(found) | {"api": "fail", f"etcd {silent}": "fail"} == states(found)


def test_a_member_of_etcd_that_is_down_is_told_apart_and_nothing_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_reach, "TIME_LIMIT_SECONDS", 2.0)
    (tmp_path / "etcd").mkdir()
    with EtcdServer(tmp_path / "etcd") as server:
        down = f"{LOOPBACK}:{free_port()}"
        first = report(ETCD_ENDPOINTS=f"{server.endpoint},{down}")
        assert (states(first)[f"etcd {server.endpoint}"], states(first)[f"etcd {down}"]) == ("ok", "fail")
        details = [one["detail"] for one in first["checks"] if one["name"] == f"etcd {server.endpoint}"]
        assert "no store of this system yet" in details[0]
        again = report(ETCD_ENDPOINTS=server.endpoint)
        assert [one["detail"] for one in again["checks"] if one["name"].startswith("etcd")] == details
        asyncio.run(begin(server.endpoint))
        assert states(report(ETCD_ENDPOINTS=server.endpoint))["store"] == "ok"


async def begin(endpoint: str) -> None:
    store = await api.open_store(load_settings({"ETCD_ENDPOINTS": endpoint}))
    await store.close()


@pytest.mark.parametrize(
    ("status", "line", "told"),
    [
        (
            200,
            'lcm_loop_longest_hold_seconds{culprit="lcm.a.b"} 0.123',
            [("ok", "held for 0.12 s at most, by lcm.a.b")],
        ),
        (200, 'lcm_loop_longest_hold_seconds{culprit="lcm.a.b"} 4.5', [("warn", "held for 4.5 s by lcm.a.b")]),
        (200, "lcm_loop_holds_total 0.0", []),
        (403, "", []),
    ],
)
async def test_what_held_the_loop_longest_is_told(
    monkeypatch: pytest.MonkeyPatch, status: int, line: str, told: list[tuple[str, str]]
) -> None:
    monkeypatch.setattr(doctor, "_fetch", lambda *_: (status, f"# HELP\n{line}\n", None))
    found = await doctor._check_loop(ApiContext("here", "http://api", Secret("lcm_x")))
    assert [(str(one.state), one.detail) for one in found] == told
