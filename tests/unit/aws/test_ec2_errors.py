"""What AWS's error codes mean, row by row."""

import pytest

from lcm.model.base.errors import Gone, Later, LcmError, Refused, Stuck, Throttled, Unreachable
from lcm.providers.aws.clients import AwsKeys
from lcm.providers.aws.errors import AwsError, map_error, redact, vcpu_quota
from lcm.providers.protocols.compute import NoCapacity, QuotaExceeded, Unauthorized


def said(code: str, text: str = "no", *, status: int = 400, machine: str = "m5zn.metal") -> AwsError:
    return AwsError("ec2:RunInstances", code, text, status, machine)


@pytest.mark.parametrize(
    ("code", "status", "wanted"),
    [
        ("InsufficientInstanceCapacity", 500, NoCapacity),
        ("InsufficientHostCapacity", 500, NoCapacity),
        ("InsufficientFreeAddressesInSubnet", 400, NoCapacity),
        ("VolumeTypeNotAvailableInZone", 400, NoCapacity),
        ("Unsupported", 400, NoCapacity),
        ("VcpuLimitExceeded", 400, QuotaExceeded),
        ("InstanceLimitExceeded", 400, QuotaExceeded),
        ("VolumeLimitExceeded", 400, QuotaExceeded),
        ("MaxIOPSLimitExceeded", 400, QuotaExceeded),
        ("MaxSpotInstanceCountExceeded", 400, QuotaExceeded),
        ("SomethingNewLimitExceeded", 400, QuotaExceeded),
        ("RequestLimitExceeded", 503, Throttled),
        ("Throttling", 400, Throttled),
        ("ThrottlingException", 400, Throttled),
        ("EC2ThrottledException", 400, Throttled),
        ("TooManyRequestsException", 429, Throttled),
        ("SlowDown", 503, Throttled),
        ("SomethingNew", 429, Throttled),
        ("UnauthorizedOperation", 403, Unauthorized),
        ("AccessDenied", 403, Unauthorized),
        ("AuthFailure", 401, Unauthorized),
        ("ExpiredToken", 400, Unauthorized),
        ("InvalidClientTokenId", 403, Unauthorized),
        ("InvalidInstanceID.NotFound", 400, Gone),
        ("InvalidInstanceID.Malformed", 400, Stuck),
        ("IncorrectInstanceState", 400, Later),
        ("IncorrectState", 400, Later),
        ("IdempotentParameterMismatch", 400, Stuck),
        ("InvalidAMIID.NotFound", 400, Stuck),
        ("InvalidAMIID.Unavailable", 400, Stuck),
        ("InvalidSubnetID.NotFound", 400, Stuck),
        ("InvalidParameterValue", 400, Stuck),
        ("InvalidParameterCombination", 400, Stuck),
        ("InvalidKeyPair.NotFound", 400, Stuck),
        ("OperationNotPermitted", 400, Stuck),
        ("SomethingNew", 400, Stuck),
        ("InternalError", 500, Unreachable),
        ("Unavailable", 503, Unreachable),
        ("503", 503, Unreachable),
    ],
)
def test_a_code_means_one_thing(code: str, status: int, wanted: type[LcmError]) -> None:
    error = map_error(said(code, status=status))
    assert type(error) is wanted
    assert code in str(error)
    assert "ec2:RunInstances" in str(error)


def test_no_capacity_is_a_refusal_that_another_zone_may_lift() -> None:
    text = (
        "Your requested instance type (m5zn.metal) is not supported in your requested Availability Zone (us-east-1e)."
    )
    error = map_error(said("Unsupported", text))
    assert isinstance(error, Refused)
    assert "us-east-1e" in str(error)


@pytest.mark.parametrize(
    ("machine", "kind"),
    [
        ("m5zn.metal", "Standard"),
        ("c8i.4xlarge", "Standard"),
        ("is4gen.xlarge", "Standard"),
        ("inf2.xlarge", "Inf"),
        ("g5.metal", "G and VT"),
        ("p5.48xlarge", "P"),
        ("x2idn.metal", "X"),
        ("u-6tb1.metal", "High Memory"),
        ("", "Standard"),
    ],
)
def test_a_quota_is_named_as_the_account_names_it(machine: str, kind: str) -> None:
    error = map_error(said("VcpuLimitExceeded", machine=machine))
    assert isinstance(error, QuotaExceeded)
    assert error.quota == vcpu_quota(machine)
    assert error.quota.startswith(f"Running On-Demand {kind}")
    assert error.quota in str(error)
    assert error.reason == "QuotaExceeded"


@pytest.mark.parametrize(
    ("kind", "quota"),
    [
        ("io2", "Storage for Provisioned IOPS SSD (io2) volumes, in TiB"),
        ("gp3", "Storage for General Purpose SSD (gp3) volumes, in TiB"),
    ],
)
def test_a_volumes_quota_is_named_by_its_kind(kind: str, quota: str) -> None:
    text = f"You have exceeded your maximum {kind} storage limit of 20 TiB in this region."
    error = map_error(said("VolumeLimitExceeded", text))
    assert isinstance(error, QuotaExceeded)
    assert error.quota == quota


def test_the_missing_action_is_read_from_the_message() -> None:
    text = (
        "You are not authorized to perform this operation. User: arn:aws:iam::123456789012:user/lcm is not authorized "
        "to perform: iam:PassRole on resource: arn:aws:iam::123456789012:role/worker. "
        "Encoded authorization failure message: 4pZk0fQe"
    )
    error = map_error(said("UnauthorizedOperation", text, status=403))
    assert isinstance(error, Unauthorized)
    assert error.action == "iam:PassRole"
    assert "4pZk0fQe" not in str(error)


@pytest.mark.parametrize(
    "text",
    [
        "Credential=AKIAIOSFODNN7EXAMPLE/20260301/us-east-1/ec2/aws4_request, SignedHeaders=host",
        "the key ASIAIOSFODNN7EXAMPLE is not known",
        "Signature=deadbeefdeadbeef is wrong",
        "x-amz-security-token: AKIAIOSFODNN7EXAMPLE",
        "Encoded authorization failure message: deadbeefdeadbeef",
    ],
)
def test_keys_and_signatures_are_taken_out_of_texts(text: str) -> None:
    assert not {"AKIAIOSFODNN7EXAMPLE", "ASIAIOSFODNN7EXAMPLE", "deadbeefdeadbeef"} & set(redact(text).split())
    assert "***" in redact(text)
    assert "EXAMPLE" not in redact(text)


def test_keys_do_not_show_their_secrets() -> None:
    assert repr(AwsKeys("AKIAIOSFODNN7EXAMPLE", "hidden", "hidden")) == "AwsKeys(access_key_id='AKIAIOSFODNN7EXAMPLE')"


def test_a_long_text_is_cut() -> None:
    assert len(redact("x" * 10_000)) == 500
