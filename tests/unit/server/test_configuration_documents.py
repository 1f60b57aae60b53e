"""What the settings add to users' documents, and when they keep out of them."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness import given
from harness.commands import NAMED, variables_environment
from harness.documents import document
from lcm.control.plane.local import ControlPlane
from lcm.model.base.defaults import apply_defaults, keep_stored_values
from lcm.model.base.errors import Invalid
from lcm.model.kinds.pool import LabWorkerPool, WorkerTemplate
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.validate import parse_document
from lcm.model.kinds.worker import LabWorker, LabWorkerSpec
from lcm.settings.load import Settings, document_defaults, load_settings, referenced_secrets
from lcm.store.memory import MemoryStore
from lcm.system.clock import SystemClock

EC2 = ("EC2_AMI_ID", "EC2_VPC_ID", "EC2_SUBNET_ID", "EC2_SECURITY_GROUP_IDS")


def admitted(said: dict[str, str], written: dict[str, Any]) -> Resource:
    return parse_document(apply_defaults(written, document_defaults(load_settings(said)).get(written["kind"], {})))


def worker(said: dict[str, str], **spec: Any) -> LabWorkerSpec:
    made = admitted(said, {"kind": "LabWorker", "metadata": {"name": "w1"}, "spec": spec})
    assert isinstance(made, LabWorker)
    return made.spec


def pool(said: dict[str, str], **spec: Any) -> LabWorkerPool:
    made = admitted(said, document("LabWorkerPool", **spec))
    assert isinstance(made, LabWorkerPool)
    return made


def test_nothing_said_adds_nothing() -> None:
    assert document_defaults(Settings()) == {}


@pytest.mark.parametrize(
    ("names", "path", "want"),
    [
        (("AWS_REGION",), "aws.region", "us-west-2"),
        (("EC2_AMI_ID",), "aws.ami_id", "ami-xxxxxxxxx"),
        (("EC2_INSTANCE_TYPE",), "aws.instance_type", "c8i.16xlarge"),
        (("EC2_SUBNET_ID",), "aws.subnet_ids", ["subnet-xxxxxxxxx"]),
        (("EC2_VPC_ID", "EC2_SUBNET_ID"), "aws.vpc_id", "vpc-xxxxxxxxx"),
        (("EC2_SECURITY_GROUP_IDS",), "aws.security_group_ids", ["sg-1", "sg-2"]),
        (("EC2_IAM_INSTANCE_PROFILE",), "aws.iam_instance_profile", "cml-workers"),
        (("CML_ADMIN_USERNAME",), "cml.admin_username", "root"),
        (("CML_WORKER_API_USERNAME", "CML_ADMIN_USERNAME"), "cml.admin_username", "robot"),
        (("CML_WORKER_API_PASSWORD", "CML_ADMIN_PASSWORD"), "cml.admin_password", "env:CML_WORKER_API_PASSWORD"),
        (("CML_LICENSE_TOKEN",), "cml.license_token", "env:CML_LICENSE_TOKEN"),
        (("IDLE_THRESHOLD_MINUTES",), "idle.threshold_minutes", 45),
    ],
)
def test_a_worker_and_a_template_that_do_not_say_get_it_from_the_settings(
    names: tuple[str, ...], path: str, want: object
) -> None:
    defaults = document_defaults(load_settings(variables_environment(*names)))
    value: Any = defaults["LabWorker"]["spec"]
    assert defaults["WorkerTemplate"]["spec"]["worker"] == value
    for part in path.split("."):
        value = value[part]
    assert value == want


@pytest.mark.parametrize(
    ("name", "path", "want"),
    [
        ("MIN_WORKERS_PER_POOL", "min_workers", 2),
        ("MAX_WORKERS_PER_POOL", "max_workers", 7),
        ("SCALE_UP_THRESHOLD_CPU", "thresholds.cpu_scale_up", 0.9),
        ("SCALE_DOWN_THRESHOLD_CPU", "thresholds.cpu_scale_down", 0.2),
    ],
)
def test_a_pool_that_does_not_say_gets_it_from_the_settings(name: str, path: str, want: float) -> None:
    value: Any = document_defaults(load_settings(variables_environment(name)))["LabWorkerPool"]["spec"]
    for part in path.split("."):
        value = value[part]
    assert value == want


def test_only_what_is_said_is_added() -> None:
    assert document_defaults(load_settings({"EC2_AMI_ID": "ami-1", "CML_ADMIN_PASSWORD": "hush"})) == {
        "LabWorker": {"spec": {"aws": {"ami_id": "ami-1"}}},
        "WorkerTemplate": {"spec": {"worker": {"aws": {"ami_id": "ami-1"}}}},
    }


def test_no_secret_enters_a_document() -> None:
    assert "hush" not in str(document_defaults(load_settings(variables_environment(*NAMED))))


def test_a_reference_leads_to_what_was_said_also_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "lcm.toml"
    file.write_text("cml_license_token = 'hush'\n")
    said = {"LCM_CONFIG": str(file), "CML_WORKER_API_PASSWORD": "hush, too"}
    spec = worker(said | {"EC2_AMI_ID": "ami-1"})
    found = {f"env:{name}": secret.reveal() for name, secret in referenced_secrets(load_settings(said)).items()}
    assert found == {spec.cml.license_token: "hush", spec.cml.admin_password: "hush, too"}


def test_every_default_makes_a_sound_document() -> None:
    said = variables_environment(*NAMED)
    assert worker(said).aws.ami_id == "ami-xxxxxxxxx"
    made = admitted(said, {"kind": "WorkerTemplate", "metadata": {"name": "t"}})
    assert isinstance(made, WorkerTemplate)
    assert made.spec.worker == worker(said)
    assert pool(said).spec.max_workers == 7


def test_what_the_document_says_wins() -> None:
    spec = worker(
        variables_environment(*NAMED),
        aws={"ami_id": "ami-mine", "instance_type": "m8i.8xlarge", "region": "us-west-2"},
        cml={"admin_username": "me", "license_token": None},
        idle={"threshold_minutes": 10},
    )
    assert (spec.aws.ami_id, spec.aws.instance_type, spec.aws.subnet_ids) == (
        "ami-mine",
        "m8i.8xlarge",
        ("subnet-xxxxxxxxx",),
    )
    assert (spec.cml.admin_username, spec.cml.license_token, spec.idle.threshold_minutes) == ("me", None, 10)


def test_a_pattern_in_the_document_wins_over_the_image_of_the_settings() -> None:
    spec = worker(variables_environment(*NAMED), aws={"ami_name_pattern": "CML-2.9*"})
    assert (spec.aws.ami_id, spec.aws.ami_name_pattern) == (None, "CML-2.9*")


def test_what_belongs_to_one_region_is_not_used_in_another() -> None:
    away = {"region": "eu-west-1", "ami_name_pattern": "CML-*"}
    for said in (variables_environment(*EC2), variables_environment(*EC2, "AWS_REGION")):
        spec = worker(said, aws=away)
        assert (spec.aws.ami_id, spec.aws.vpc_id) == (None, None)
        assert (spec.aws.subnet_ids, spec.aws.security_group_ids) == ((), ())
    assert worker(variables_environment(*EC2), aws={"region": "us-east-1"}).aws.ami_id == "ami-xxxxxxxxx"


def test_a_document_in_another_region_without_an_image_is_told_so() -> None:
    with pytest.raises(Invalid, match="no image"):
        worker(variables_environment(*EC2), aws={"region": "eu-west-1"})


@pytest.mark.parametrize("network", [{"subnet_ids": ["subnet-mine"]}, {"subnet_ids": []}, {"vpc_id": None}])
def test_networks_are_not_mixed(network: dict[str, Any]) -> None:
    aws = worker(variables_environment(*EC2), aws=network).aws
    assert (aws.vpc_id, aws.security_group_ids) == (None, ())
    assert aws.subnet_ids == tuple(network.get("subnet_ids") or ())


def test_security_groups_of_the_document_go_with_the_network_of_the_settings() -> None:
    aws = worker(variables_environment(*EC2), aws={"security_group_ids": ["sg-mine"]}).aws
    assert (aws.subnet_ids, aws.security_group_ids) == (("subnet-xxxxxxxxx",), ("sg-mine",))


def test_a_vpc_without_a_subnet_is_left_out() -> None:
    assert document_defaults(load_settings({"EC2_VPC_ID": "vpc-1"})) == {}


def test_a_short_threshold_warns_earlier() -> None:
    idle = worker({"IDLE_THRESHOLD_MINUTES": "3", "EC2_AMI_ID": "ami-1"}).idle
    assert (idle.threshold_minutes, idle.warn_minutes) == (3, 2)
    assert worker({"IDLE_THRESHOLD_MINUTES": "1", "EC2_AMI_ID": "ami-1"}).idle.warn_minutes == 0


def test_a_threshold_below_the_documents_own_warning_is_left_out() -> None:
    idle = worker({"IDLE_THRESHOLD_MINUTES": "8", "EC2_AMI_ID": "ami-1"}, idle={"warn_minutes": 10}).idle
    assert (idle.threshold_minutes, idle.warn_minutes) == (30, 10)


@pytest.mark.parametrize(
    ("said", "spec", "want"),
    [
        ({"MAX_WORKERS_PER_POOL": "4"}, {"min_workers": 6}, (6, 10)),
        ({"MAX_WORKERS_PER_POOL": "4"}, {"min_workers": 4}, (4, 4)),
        ({"MIN_WORKERS_PER_POOL": "5"}, {"max_workers": 3}, (1, 3)),
        ({"MIN_WORKERS_PER_POOL": "5", "MAX_WORKERS_PER_POOL": "20"}, {"max_workers": 7}, (5, 7)),
    ],
)
def test_bounds_that_would_contradict_the_documents_own_are_left_out(
    said: dict[str, str], spec: dict[str, int], want: tuple[int, int]
) -> None:
    found = pool(said, **spec).spec
    assert (found.min_workers, found.max_workers) == want


@pytest.mark.parametrize(
    ("said", "thresholds", "want"),
    [
        ({"SCALE_UP_THRESHOLD_CPU": "0.5"}, {"cpu_scale_down": 0.6}, (0.6, 0.75)),
        ({"SCALE_UP_THRESHOLD_CPU": "0.5"}, {"cpu_scale_down": 0.5}, (0.5, 0.75)),
        ({"SCALE_DOWN_THRESHOLD_CPU": "0.5"}, {"cpu_scale_up": 0.4}, (0.30, 0.4)),
        ({"SCALE_DOWN_THRESHOLD_CPU": "0.1"}, {"cpu_scale_up": 0.4}, (0.1, 0.4)),
    ],
)
def test_thresholds_that_would_contradict_the_documents_own_are_left_out(
    said: dict[str, str], thresholds: dict[str, float], want: tuple[float, float]
) -> None:
    found = pool(said, thresholds=thresholds).spec.thresholds
    assert (found.cpu_scale_down, found.cpu_scale_up) == want


@pytest.mark.parametrize("spec", [None, [], "text", {"aws": "text"}, {"aws": None}, {"idle": {"warn_minutes": "x"}}])
def test_a_document_of_the_wrong_shape_is_left_to_validation(spec: object) -> None:
    with pytest.raises(Invalid):
        admitted(variables_environment(*NAMED), {"kind": "LabWorker", "metadata": {"name": "w1"}, "spec": spec})


async def test_admission_puts_them_beneath_what_users_write() -> None:
    store = MemoryStore()
    plane = ControlPlane(
        store, clock=SystemClock(), defaults=document_defaults(load_settings(variables_environment(*NAMED)))
    )
    bare = plane.read({"metadata": {"name": "w1"}}, LabWorker)
    assert isinstance(bare, LabWorker)
    assert (bare.spec.aws.region, bare.spec.aws.ami_id) == ("us-west-2", "ami-xxxxxxxxx")
    own = plane.read(document("LabWorker", aws={"ami_name_pattern": "CML-*"}))
    assert isinstance(own, LabWorker)
    assert (own.spec.aws.ami_id, own.spec.aws.region) == (None, "us-west-2")
    made = plane.read(document("LabWorkerPool"))
    assert isinstance(made, LabWorkerPool)
    assert (made.spec.min_workers, made.spec.max_workers) == (2, 7)
    await store.close()


def test_a_document_is_not_changed() -> None:
    written = document("LabWorker", aws={"tags": {"a": "b"}})
    before = repr(written)
    admitted(variables_environment(*NAMED), written)
    assert repr(written) == before


def test_every_field_that_the_settings_fill_in_stays_when_they_change() -> None:
    for kind, filled in document_defaults(load_settings(variables_environment(*NAMED))).items():
        one = next(resource for resource in given.every() if resource.kind == kind)
        assert leaves(filled) <= leaves(keep_stored_values(kind, msgspec.to_builtins(one.spec), {}))


def leaves(part: Any, path: str = "") -> set[str]:
    """Name every field of a document."""
    if not isinstance(part, dict):
        return {path}
    return {leaf for name, value in part.items() for leaf in leaves(value, f"{path}.{name}")}
