"""Where settings come from, which of them wins, and what stops a start."""

import os
import re
from pathlib import Path

import msgspec
import pytest

from harness import given
from harness.commands import FILES, FIRST_PLAN, NAMED, variables_environment
from lcm.model.base.errors import Invalid
from lcm.model.kinds.settings import Strategy, SystemSettings, SystemSettingsSpec
from lcm.model.kinds.validate import parse_document
from lcm.settings import load as config
from lcm.settings.load import Settings, effective_settings, list_values, load_settings, read_configuration
from lcm.settings.sources import Variable
from lcm.settings.values import OTHER_VARIABLES, VARIABLES
from lcm.store.base import MAX_LEASE_SECONDS, MIN_LEASE_SECONDS


@pytest.fixture(autouse=True)
def _nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep a file that happens to lie where the tests run out of them."""
    monkeypatch.setattr(config, "DEFAULT_FILES", (tmp_path / "lcm.toml", tmp_path / "etc.toml"))


def shown(environment: dict[str, str], system: SystemSettings | None = None) -> dict[str, tuple[str, str]]:
    return {one.variable: (one.value, one.source) for one in list_values(read_configuration(environment), system)}


def complaints(environment: dict[str, str]) -> str:
    with pytest.raises(Invalid) as raised:
        load_settings(environment)
    assert all(fault.problem and fault.remedy for fault in raised.value.faults)
    return str(raised.value)


def named(environment: dict[str, str]) -> list[str]:
    return [fault.path for fault in read_configuration(environment).faults]


def system(**spec: object) -> SystemSettings:
    made = parse_document({"kind": "SystemSettings", "metadata": {"name": "system"}, "spec": spec})
    assert isinstance(made, SystemSettings)
    return made


def test_without_anything_said_the_defaults_count() -> None:
    assert load_settings({}) == Settings()
    assert {source for _, source in shown({}).values()} == {"default"}


@pytest.mark.parametrize("name", NAMED)
def test_a_variable_works_under_its_own_name(name: str) -> None:
    found = shown(variables_environment(name))
    assert found[name] == (NAMED[name].shown, f"environment {name}")
    assert found[name][0] != shown({})[name][0], "the table's value must differ from the default"


def test_the_first_plan_named_eighteen() -> None:
    assert len(FIRST_PLAN) == 18


def test_every_variable_is_in_the_table() -> None:
    assert {one.name for one in VARIABLES} == {*NAMED, *FILES}


def test_all_of_them_may_be_set_at_once(tmp_path: Path) -> None:
    file = tmp_path / "some.pem"
    file.touch()
    everything = variables_environment(*NAMED) | dict.fromkeys(FILES, str(file))
    assert not read_configuration(everything).faults
    for name, (value, source) in shown(everything).items():
        assert value == (str(file) if name in FILES else NAMED[name].shown)
        assert source == f"environment {name}"


@pytest.mark.parametrize("variable", VARIABLES, ids=lambda one: one.name)
def test_a_bad_value_stops_the_start_and_is_named(variable: Variable) -> None:
    told = complaints({variable.name: "hush\nhush"})
    assert told.startswith(f"{variable.name}: ")
    assert variable.secret is ("hush" not in told)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("TOTAL_CPU_CORES", "lots", "'lots' in the environment is not a number above 0"),
        ("TOTAL_CPU_CORES", "inf", "'inf'"),
        ("TOTAL_CPU_CORES", "nan", "'nan'"),
        ("TOTAL_CPU_CORES", "0", "a number above 0"),
        ("TOTAL_MEMORY_GB", "1.5", "a whole number above 0"),
        ("LOG_LEVEL", "LOUD", "one of DEBUG, INFO, WARNING, ERROR"),
        ("LCM_PORT", "65536", "from 0 to 65535"),
        ("LCM_STORE", "mongo", "one of auto, sqlite, etcd"),
        ("LCM_STORE", "etcd", "set ETCD_ENDPOINTS"),
        ("WORKER_DISCOVERY_ENABLED", "maybe", "true or false"),
        ("WORKER_DISCOVERY_INTERVAL", "5", "from 10 to 86400"),
        ("WORKER_DISCOVERY_REGIONS", "us-east-1,Frankfurt", "of the form us-east-1"),
        ("WORKER_DISCOVERY_REGIONS", ",", "of the form us-east-1"),
        ("SCHEDULER_STRATEGY", "Cheapest", "one of BinPack, BestFit, LeastUtilized"),
        ("IDLE_THRESHOLD_MINUTES", "0", "whole minutes"),
        ("SCALE_UP_THRESHOLD_CPU", "75", "a fraction from 0 to 1"),
        ("WORKER_CONTROLLER_LEADER_LEASE_TTL", "1", "from 2 to 86400"),
        ("CONTROL_PLANE_API_URL", "control-plane-api:8030", "an address such as http://"),
        ("CONTROL_PLANE_API_URL", "ftp://a", "an address such as http://"),
        ("ETCD_HOST", "etcd:2379", "without a port"),
        ("ETCD_ENDPOINTS", "etcd", "HOST:PORT"),
        ("LCM_BODY_BYTES", "1", "from 65536"),
        ("LCM_APPLY_BYTES", "1000", "from 65536"),
        ("LCM_REQUEST_BURST", "1", "from 10"),
        ("LCM_MAX_CONNECTIONS", "1", "from 10"),
        ("ETCD_CA_FILE", "/nowhere/ca.pem", "there is no file /nowhere/ca.pem"),
        ("AWS_REGION", "us", "of the form us-east-1"),
        ("EC2_AMI_ID", "CML-2.9", "an image such as ami-"),
        ("EC2_SECURITY_GROUP_IDS", "sg-1,default", "a security group such as sg-"),
        ("WORKER_NOTIFICATION_WEBHOOKS", "https://a.b/hush,hush", "number 2 is no address"),
        ("WORKER_NOTIFICATION_WEBHOOKS", "https://10.0.0.1/hush", "number 1 is no address to send to: 10.0.0.1"),
        ("WORKER_NOTIFICATION_WEBHOOKS", "http://a.b/hush", "number 1 is no address to send to: plain http"),
        ("WEBHOOK_NETWORKS", "10.0.0.1/8", "has host bits set"),
        ("EVENT_SOURCE", "no uri", "is not a URI"),
        ("AWS_ACCESS_KEY_ID", "hush", "set AWS_SECRET_ACCESS_KEY too"),
        ("AWS_SECRET_ACCESS_KEY", "hush", "set AWS_ACCESS_KEY_ID too"),
        ("ETCD_PASSWORD", "hush", "set ETCD_USER too"),
        ("SMTP_HOST", "mail.example.org", "set MAIL_FROM too"),
        ("SMTP_PASSWORD", "hush", "set SMTP_USER too"),
        ("SMTP_CA_FILE", "/nowhere/ca.pem", "there is no file /nowhere/ca.pem"),
        ("MAIL_TIME_ZONE", "Mars/Base", "use one such as Europe/Berlin"),
        ("MIN_WORKERS_PER_POOL", "11", "more than MAX_WORKERS_PER_POOL (10)"),
        ("SCALE_DOWN_THRESHOLD_CPU", "0.75", "not below SCALE_UP_THRESHOLD_CPU"),
    ],
)
def test_the_complaint_says_what_to_do(name: str, text: str, words: str) -> None:
    told = complaints({name: text})
    assert told.startswith(f"{name}: ")
    assert words in told
    assert "\n" not in told, "one mistake, one line"
    assert "hush" not in told


def test_mail_goes_unencrypted_only_within_this_machine() -> None:
    mail = {"SMTP_HOST": "mail.example.org", "MAIL_FROM": "lcm@example.org"}
    assert load_settings(mail).smtp_starttls
    assert named(mail | {"SMTP_STARTTLS": "false"}) == ["SMTP_STARTTLS"]
    assert load_settings(mail | {"SMTP_STARTTLS": "false", "SMTP_PORT": "465"}).smtp_port == 465
    assert not load_settings(mail | {"SMTP_STARTTLS": "false", "SMTP_HOST": "127.0.0.1"}).smtp_starttls
    assert named(mail | {"MAIL_FROM": "Eve <eve@example.org>, x@example.org"}) == ["MAIL_FROM"]


def test_every_bad_value_is_reported_at_once(tmp_path: Path) -> None:
    (tmp_path / "lcm.toml").write_text("total_memory_gb = 'much'\ncolour = 'blue'\n")
    bad = {"TOTAL_CPU_CORES": "lots", "LOG_LEVEL": "LOUD", "LCM_PROT": "1", "MIN_WORKERS_PER_POOL": "20"}
    want = {"TOTAL_MEMORY_GB", "colour", "TOTAL_CPU_CORES", "LOG_LEVEL", "LCM_PROT", "MIN_WORKERS_PER_POOL"}
    assert set(named(bad)) == want


def test_what_is_wrong_with_a_value_is_not_said_twice() -> None:
    assert named({"MIN_WORKERS_PER_POOL": "11", "MAX_WORKERS_PER_POOL": "many"}) == ["MAX_WORKERS_PER_POOL"]


def test_an_address_with_a_password_is_refused_and_not_repeated() -> None:
    assert "hush" not in complaints({"CONTROL_PLANE_API_URL": "http://me:hush@host"})
    assert "hush" not in complaints({"ETCD_ENDPOINTS": "http://me:hush@host:2379"})


def test_a_long_bad_value_is_cut() -> None:
    assert len(complaints({"LOG_LEVEL": "x" * 10_000})) < 300


@pytest.mark.parametrize("text", ["true", "True", "YES", "on", "1"])
def test_truth_is_written_in_several_ways(text: str) -> None:
    assert load_settings({"WORKER_DISCOVERY_ENABLED": text}).worker_discovery_enabled is True


@pytest.mark.parametrize(
    ("text", "want"), [("BEST_FIT", "BestFit"), ("leastlabs", "LeastLabs"), ("round_robin", "RoundRobin")]
)
def test_a_strategy_is_known_in_any_case(text: str, want: str) -> None:
    assert load_settings({"SCHEDULER_STRATEGY": text}).scheduler_strategy is Strategy(want)


def test_an_empty_variable_counts_as_not_set() -> None:
    assert (
        load_settings({"TOTAL_CPU_CORES": "", "CML_ADMIN_PASSWORD": " ", "WORKER_DISCOVERY_REGIONS": ""}) == Settings()
    )


def test_spaces_around_a_value_do_not_count_but_in_a_secret_they_do() -> None:
    found = load_settings({"LOG_LEVEL": " debug ", "CML_ADMIN_PASSWORD": " a "})
    assert found.log_level == "DEBUG"
    assert found.cml_admin_password is not None
    assert found.cml_admin_password.reveal() == " a "


def test_a_lease_may_last_as_long_as_the_store_allows() -> None:
    for seconds in (MIN_LEASE_SECONDS, MAX_LEASE_SECONDS):
        load_settings({"WORKER_CONTROLLER_LEADER_LEASE_TTL": str(seconds)})


def test_a_misspelt_variable_of_ours_stops_the_start() -> None:
    assert "did you mean LCM_DATA_DIR?" in complaints({"LCM_DATADIR": "x"})
    assert "did you mean LCM_TOKEN?" in complaints({"LCM_TOKENS": "x"})


@pytest.mark.parametrize("name", ["LCM_WHOLE_SUITE", "LCM_SERVICE_HOST", "LCM_PORT_8030_TCP", "HOME", *OTHER_VARIABLES])
def test_a_variable_of_somebody_else_is_left_alone(name: str) -> None:
    found = read_configuration({name: "x"} if name != "LCM_CONFIG" else {})
    assert (found.faults, found.warnings) == ((), ())


@pytest.mark.parametrize("name", ["LCM_PORT", "LCM_API_PORT", "ETCD_PORT"])
def test_what_kubernetes_says_of_a_service_stops_nothing_and_is_doubted(name: str) -> None:
    found = read_configuration({name: "tcp://10.0.0.1:8030", "KUBERNETES_PORT": "tcp://10.0.0.1:443"})
    assert (found.faults, found.settings) == ((), Settings())
    assert [one.path for one in found.warnings] == [name]
    assert "enableServiceLinks" in found.warnings[0].remedy


def test_a_misspelt_variable_of_another_name_is_doubted() -> None:
    found = read_configuration({"ETCD_ENDPOINT": "etcd:2379"})
    assert not found.faults
    assert "did you mean ETCD_ENDPOINTS?" in str(found.warnings[0])


def test_what_does_nothing_as_it_stands_is_doubted() -> None:
    assert [one.path for one in read_configuration({"EC2_VPC_ID": "vpc-1"}).warnings] == ["EC2_VPC_ID"]
    assert [one.path for one in read_configuration({"LCM_STORE": "sqlite", "ETCD_HOST": "e"}).warnings] == ["LCM_STORE"]


def test_an_alias_says_the_same() -> None:
    assert shown({"WORKER_METRICS_POLL_INTERVAL": "300"})["METRICS_POLL_INTERVAL"] == (
        "300",
        "environment WORKER_METRICS_POLL_INTERVAL",
    )


def test_two_names_that_agree_do_no_harm() -> None:
    assert (
        load_settings({"METRICS_POLL_INTERVAL": "90", "WORKER_METRICS_POLL_INTERVAL": "90"}).metrics_poll_interval == 90
    )


def test_two_names_that_differ_are_both_named() -> None:
    told = complaints({"METRICS_POLL_INTERVAL": "90", "WORKER_METRICS_POLL_INTERVAL": "60"})
    assert "METRICS_POLL_INTERVAL: WORKER_METRICS_POLL_INTERVAL has another value" in told


def test_an_alias_in_the_environment_wins_over_the_name_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "lcm.toml").write_text("metrics_poll_interval = 10\n")
    assert load_settings({"WORKER_METRICS_POLL_INTERVAL": "90"}).metrics_poll_interval == 90


def test_endpoints_and_host_that_differ_are_both_named() -> None:
    told = complaints({"ETCD_ENDPOINTS": "a:2379,b:2379", "ETCD_HOST": "c"})
    assert told.startswith("ETCD_ENDPOINTS: a:2379, b:2379 does not include c:2379")
    assert (
        load_settings({"ETCD_ENDPOINTS": "http://a:2379,b:2379", "ETCD_HOST": "a"}).etcd_addresses[0] == "http://a:2379"
    )


@pytest.mark.parametrize(
    ("said", "engine", "addresses"),
    [
        ({}, "sqlite", ()),
        ({"ETCD_HOST": "etcd"}, "etcd", ("etcd:2379",)),
        ({"ETCD_HOST": "etcd", "ETCD_PORT": "1"}, "etcd", ("etcd:1",)),
        ({"ETCD_HOST": "[::1]"}, "etcd", ("[::1]:2379",)),
        ({"ETCD_ENDPOINTS": "a:1, b:2"}, "etcd", ("a:1", "b:2")),
        ({"ETCD_HOST": "etcd", "LCM_STORE": "sqlite"}, "sqlite", ("etcd:2379",)),
        ({"ETCD_HOST": "etcd", "LCM_STORE": "etcd"}, "etcd", ("etcd:2379",)),
        ({"ETCD_PORT": "2380"}, "sqlite", ()),
    ],
)
def test_etcd_is_used_when_its_address_is_set(said: dict[str, str], engine: str, addresses: tuple[str, ...]) -> None:
    found = load_settings(said)
    assert (found.engine, found.etcd_addresses) == (engine, addresses)


def test_discovery_looks_where_workers_are_made() -> None:
    found = shown({"AWS_REGION": "eu-central-1"})
    assert found["WORKER_DISCOVERY_REGIONS"] == ("eu-central-1", "environment AWS_REGION")
    both = load_settings({"AWS_REGION": "eu-central-1", "WORKER_DISCOVERY_REGIONS": "us-west-2"})
    assert both.worker_discovery_regions == ("us-west-2",)


def test_each_layer_wins_over_the_one_before(tmp_path: Path) -> None:
    file = tmp_path / "lcm.toml"
    assert shown({})["IDLE_THRESHOLD_MINUTES"] == ("30", "default")
    file.write_text("idle_threshold_minutes = 40\n")
    assert shown({})["IDLE_THRESHOLD_MINUTES"] == ("40", f"file {file}")
    said = {"IDLE_THRESHOLD_MINUTES": "50"}
    assert shown(said)["IDLE_THRESHOLD_MINUTES"] == ("50", "environment IDLE_THRESHOLD_MINUTES")
    run_time = system(idle={"threshold_minutes": 60})
    assert shown(said, run_time)["IDLE_THRESHOLD_MINUTES"] == ("60", "settings object")
    assert effective_settings(load_settings(said), run_time).idle_threshold_minutes == 60


def test_what_the_settings_object_does_not_say_stays_as_it_was() -> None:
    settings = load_settings(variables_environment(*NAMED))
    assert effective_settings(settings, None) == settings
    assert effective_settings(settings, system()) == settings
    changed = effective_settings(settings, system(discovery={"enabled": True}))
    assert msgspec.structs.replace(changed, worker_discovery_enabled=False) == settings


def leaves(struct: type[msgspec.Struct], path: str = "") -> list[str]:
    found: list[str] = []
    for field in msgspec.structs.fields(struct):
        inner = isinstance(field.type, type) and issubclass(field.type, msgspec.Struct)
        found += leaves(field.type, f"{path}{field.name}.") if inner else [path + field.name]
    return found


def test_every_field_of_the_settings_object_wins_over_a_variable() -> None:
    assert leaves(SystemSettingsSpec) == [
        *config.RUNTIME_FIELDS,
        "quotas.rules",
        "budgets.tracks",
        "privacy.retention_days",
    ]  # lists, which no variable holds, and what is decided here alone
    full = system(
        discovery={"enabled": False, "regions": ["eu-west-1"], "ami_name_pattern": "X-*", "scan_interval_seconds": 11},
        scheduler={
            "strategy": "Random",
            "reconcile_interval_seconds": 12,
            "require_licensed_for_cml": False,
            "worker_bootup_delay_minutes": 13,
            "lablet_instantiation_delay_minutes": 14,
        },
        monitoring={
            "enabled": False,
            "metrics_poll_interval_seconds": 15,
            "cpu_alert_percent": 75,
            "memory_alert_percent": 76,
            "disk_alert_percent": 77.5,
        },
        idle={"check_interval_seconds": 16, "threshold_minutes": 17},
        scaling={
            "min_workers": 18,
            "max_workers": 19,
            "scale_up_threshold_cpu": 0.5,
            "scale_down_threshold_cpu": 0.4,
        },
        learning={"review_difference": 0.6, "review_sessions": 20},
        artifacts={"retention_days": 7},
        quotas={"max_pending": 21, "max_live": 22, "max_ahead": 23, "horizon_days": 24}
        | {"max_nodes": 25, "max_hours_ahead": 26, "max_hours_per_month": 27, "max_usd_per_month": 28},
    )
    of_the_object = [one for one, (_, source) in shown({}, full).items() if source == "settings object"]
    assert sorted(of_the_object) == sorted(field.upper() for field in config.RUNTIME_FIELDS.values())
    found = effective_settings(Settings(), full)
    assert all(getattr(found, field) != getattr(Settings(), field) for field in config.RUNTIME_FIELDS.values())


def test_a_file_says_variables_in_any_case_and_with_its_own_types(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        'Total_CPU_Cores = 8\nSCHEDULER_ENABLED = false\nworker_discovery_regions = ["eu-west-1", "eu-west-2"]\n'
        'scale_up_threshold_cpu = 0.5\nlcm_data_dir = "~/x"\nCML_LICENSE_TOKEN = "hush"\n'
    )
    found = load_settings({"LCM_CONFIG": str(file)})
    assert (found.total_cpu_cores, found.scheduler_enabled, found.scale_up_threshold_cpu) == (8.0, False, 0.5)
    assert found.worker_discovery_regions == ("eu-west-1", "eu-west-2")
    assert found.data_dir == Path("~/x").expanduser()
    assert shown({"LCM_CONFIG": str(file)})["CML_LICENSE_TOKEN"] == ("set", f"file {file}")


def test_the_file_of_this_folder_comes_before_that_of_the_machine(tmp_path: Path) -> None:
    machine, folder, other = tmp_path / "etc.toml", tmp_path / "lcm.toml", tmp_path / "other.toml"
    machine.write_text("total_memory_gb = 1\n")
    assert load_settings({}).total_memory_gb == 1
    folder.write_text("total_memory_gb = 2\n")
    assert (load_settings({}).total_memory_gb, read_configuration({}).file) == (2, folder)
    other.write_text("")
    assert load_settings({"LCM_CONFIG": str(other)}).total_memory_gb == 128


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("idle_treshold_minutes = 3", "idle_treshold_minutes: unknown in {file}; did you mean IDLE_THRESHOLD_MINUTES?"),
        ("LCM_CONFIG = 'x'", "LCM_CONFIG: unknown in {file}"),
        ("[etcd]\nhost = 'x'", "etcd: unknown in {file}"),
        ("log_level = 'INFO'\nLOG_LEVEL = 'DEBUG'", "LOG_LEVEL: set twice in {file}"),
        ("log_level = INFO", "{file}: is no TOML"),
        ("total_cpu_cores = 'lots'", "TOTAL_CPU_CORES: 'lots' in {file} is not a number above 0"),
        ("total_cpu_cores = true", "TOTAL_CPU_CORES: True in {file}"),
        ("lcm_port = 80.5", "LCM_PORT: 80.5 in {file}"),
        ("worker_discovery_regions = 'us-east-1'", "several as a list"),
        ("worker_discovery_regions = []", "WORKER_DISCOVERY_REGIONS: [] in {file}"),
        ("cml_admin_password = 12345", "CML_ADMIN_PASSWORD: the value in {file} is not a line of text"),
        ("metrics_poll_interval = 1\nworker_metrics_poll_interval = 2", "METRICS_POLL_INTERVAL: WORKER_METRICS"),
    ],
)
def test_a_fault_of_the_file_stops_the_start(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "lcm.toml"
    file.write_text(text)
    told = complaints({})
    assert words.format(file=file) in told
    assert "12345" not in told


@pytest.mark.parametrize("make", ["missing", "folder", "bytes"])
def test_a_file_that_cannot_be_read_stops_the_start(tmp_path: Path, make: str) -> None:
    path = tmp_path / "other.toml"
    if make == "folder":
        path.mkdir()
    elif make == "bytes":
        path.write_bytes(b"\xff\xfe\x00")
    assert str(path) in complaints({"LCM_CONFIG": str(path)})


def test_a_bad_value_in_the_file_counts_although_the_environment_says_better(tmp_path: Path) -> None:
    (tmp_path / "lcm.toml").write_text("log_level = 'LOUD'\n")
    assert named({"LOG_LEVEL": "DEBUG"}) == ["LOG_LEVEL"]


def test_secrets_are_never_shown() -> None:
    found = read_configuration(variables_environment(*NAMED))
    hidden = {name for name, one in NAMED.items() if one.text != one.shown and "set" in one.shown}
    assert hidden == {one.name for one in VARIABLES if one.secret}
    for text in (repr(found), str(found.settings), str(list_values(found))):
        assert not re.search("hush|AKIA", text)
    with pytest.raises(TypeError):
        msgspec.json.encode(found.settings)


def test_every_variable_that_sounds_like_a_secret_is_one() -> None:
    sounds = re.compile("PASSWORD|TOKEN|SECRET(?!_ENV_|_FILE_|_AWS_)|API_KEY|ACCESS_KEY|SEAL_KEYS|WEBHOOKS")
    assert {one.name for one in VARIABLES if sounds.search(one.name)} == {one.name for one in VARIABLES if one.secret}


def test_the_environment_of_this_process_is_read_when_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*os.environ,):
        if name in NAMED or name.startswith("LCM_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("TOTAL_MEMORY_GB", "7")
    assert load_settings().total_memory_gb == 7


def test_settings_are_values() -> None:
    assert hash(load_settings({"LOG_LEVEL": "debug"})) == hash(load_settings({"LOG_LEVEL": "DEBUG"}))
    assert given.settings().spec == SystemSettingsSpec()
