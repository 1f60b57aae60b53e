"""What AWS's errors mean to us, in one table by code. `clients`, `ec2` and `cloudwatch` read answers within it."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeVar, cast

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    NoCredentialsError,
    NoRegionError,
    ParamValidationError,
    PartialCredentialsError,
    ValidationError,
)
from botocore.parsers import ResponseParserError

from lcm.model.base.errors import Gone, Later, LcmError, Stuck, Throttled, Unreachable
from lcm.model.base.resource import shorten_text
from lcm.providers.protocols.compute import NoCapacity, QuotaExceeded, Unauthorized

T = TypeVar("T")

_NO_ANSWER = (BotoCoreError, OSError)
_MALFORMED_ANSWER = (ResponseParserError, ValueError, TypeError, AttributeError, LookupError)
"""What botocore's parsers, and our reading of what they parsed, raise over an answer of another shape."""

REUSED_LAUNCH: Final = "TokenReused"
"""The launch's token has launched something with other parameters."""
SPENT_LAUNCH: Final = "TokenSpent"
"""What the launch's token launched has been terminated."""
UNSUPPORTED: Final = "Unsupported"
"""This kind of machine does not support the operation."""

_MAX_TEXT: Final = 500
_SECRETS: Final = re.compile(
    r"\b(?:AKIA|ASIA)[A-Z0-9]{8,}\b"
    r"|(?i:(?<=credential=)|(?<=signature=)|(?<=security-token=)|(?<=security-token:)|(?<=failure message: ))[^\s,&]+"
)
_ACTION: Final = re.compile(r"perform: ([\w-]+:\w+)")
_FAMILY: Final = re.compile(r"[a-z]+")
_VOLUME: Final = re.compile(r"\b(?:io[12]|gp[23])\b")

_VCPU_QUOTAS: Final[Mapping[str, str]] = {
    "dl": "DL",
    "f": "F",
    "g": "G and VT",
    "gr": "G and VT",
    "hpc": "HPC",
    "inf": "Inf",
    "p": "P",
    "trn": "Trn",
    "u": "High Memory",
    "vt": "G and VT",
    "x": "X",
}


@dataclass(frozen=True)
class AwsError:
    """One error of AWS: the action, the code, the text, the HTTP status, and the machine type it was about."""

    action: str
    code: str
    text: str
    status: int
    machine: str = ""

    def __str__(self) -> str:
        return f"{self.action}: {self.code}: {redact(self.text)}"


ErrorMapper = Callable[[AwsError], LcmError]


def redact(text: str) -> str:
    """Remove keys, signatures and encoded messages from a vendor's text, and shorten it."""
    return shorten_text(_SECRETS.sub("***", text), _MAX_TEXT)


def vcpu_quota(machine: str) -> str:
    """Return the name of the quota that counts a machine type's virtual CPUs."""
    family = _FAMILY.match(machine)
    kind = _VCPU_QUOTAS.get(family[0], "") if family else ""
    return f"Running On-Demand {kind or 'Standard (A, C, D, H, I, M, R, T, Z)'} instances"


def _to_quota_exceeded(name: str) -> ErrorMapper:
    return lambda said: QuotaExceeded(f"{said}; raise the quota «{name}»", quota=name)


def _to_vcpu_quota(said: AwsError) -> LcmError:
    return _to_quota_exceeded(vcpu_quota(said.machine))(said)


def _to_volume_quota(said: AwsError) -> LcmError:
    kind = _VOLUME.search(said.text)
    family = "General Purpose" if kind and kind[0].startswith("gp") else "Provisioned IOPS"
    return _to_quota_exceeded(f"Storage for {family} SSD ({kind[0] if kind else 'io1'}) volumes, in TiB")(said)


def _to_no_capacity(said: AwsError) -> LcmError:
    return NoCapacity(str(said))


def _to_throttled(said: AwsError) -> LcmError:
    return Throttled(str(said), after=timedelta(seconds=5))


def _to_unreachable(said: AwsError) -> LcmError:
    return Unreachable(str(said), after=timedelta(seconds=5))


def _to_later(said: AwsError) -> LcmError:
    return Later(str(said), after=timedelta(seconds=5))


def _to_gone(said: AwsError) -> LcmError:
    return Gone(str(said))


def _to_unauthorized(said: AwsError) -> LcmError:
    named = _ACTION.search(said.text)
    action = named[1] if named else said.action
    # The vendor's own text names accounts and carries encoded policies.
    return Unauthorized(f"{said.action}: {said.code}: the credentials may not do {action}", action=action)


def _to_bad_credentials(said: AwsError) -> LcmError:
    return Unauthorized(f"{said.action}: {said.code}: AWS does not accept the credentials", action=said.action)


def _to_stuck(reason: str, remark: str = "") -> ErrorMapper:
    return lambda said: Stuck(reason, f"{said}; {remark}" if remark else str(said))


_CODES: Final[Mapping[str, ErrorMapper]] = {
    "InsufficientInstanceCapacity": _to_no_capacity,
    "InsufficientHostCapacity": _to_no_capacity,
    "InsufficientCapacity": _to_no_capacity,
    "InsufficientAddressCapacity": _to_no_capacity,
    "InsufficientFreeAddressesInSubnet": _to_no_capacity,
    "InsufficientVolumeCapacity": _to_no_capacity,
    "InsufficientReservedInstanceCapacity": _to_no_capacity,
    "UnfulfillableCapacity": _to_no_capacity,
    "VolumeTypeNotAvailableInZone": _to_no_capacity,
    "Unsupported": _to_no_capacity,
    "VcpuLimitExceeded": _to_vcpu_quota,
    "InstanceLimitExceeded": _to_vcpu_quota,
    "MaxSpotInstanceCountExceeded": _to_quota_exceeded("All Standard Spot Instance Requests"),
    "MaxIOPSLimitExceeded": _to_quota_exceeded("IOPS for Provisioned IOPS SSD (io1) volumes"),
    "VolumeLimitExceeded": _to_volume_quota,
    "NetworkInterfaceLimitExceeded": _to_quota_exceeded("Network interfaces per Region"),
    "AddressLimitExceeded": _to_quota_exceeded("EC2-VPC Elastic IPs"),
    "RequestLimitExceeded": _to_throttled,
    "BandwidthLimitExceeded": _to_throttled,
    "Throttling": _to_throttled,
    "ThrottlingException": _to_throttled,
    "ThrottledException": _to_throttled,
    "EC2ThrottledException": _to_throttled,
    "RequestThrottled": _to_throttled,
    "RequestThrottledException": _to_throttled,
    "TooManyRequests": _to_throttled,
    "TooManyRequestsException": _to_throttled,
    "SlowDown": _to_throttled,
    "UnauthorizedOperation": _to_unauthorized,
    "AccessDenied": _to_unauthorized,
    "AccessDeniedException": _to_unauthorized,
    "OptInRequired": _to_unauthorized,
    "AuthFailure": _to_bad_credentials,
    "ExpiredToken": _to_bad_credentials,
    "ExpiredTokenException": _to_bad_credentials,
    "RequestExpired": _to_bad_credentials,
    "InvalidClientTokenId": _to_bad_credentials,
    "UnrecognizedClientException": _to_bad_credentials,
    "SignatureDoesNotMatch": _to_bad_credentials,
    "InvalidSignatureException": _to_bad_credentials,
    "IncompleteSignature": _to_bad_credentials,
    "MissingAuthenticationToken": _to_bad_credentials,
    "InvalidInstanceID.NotFound": _to_gone,
    "IncorrectInstanceState": _to_later,
    "IncorrectState": _to_later,
    "ConcurrentTagAccess": _to_later,
    "PendingVerification": _to_later,
    "IdempotentParameterMismatch": _to_stuck(REUSED_LAUNCH, "this token has launched something with other parameters"),
    "IdempotentInstanceTerminated": _to_stuck(SPENT_LAUNCH, "a new attempt needs a new token"),
    "OperationNotPermitted": _to_stuck("Protected"),
    "UnsupportedOperation": _to_stuck(UNSUPPORTED),
    "RequestTimeout": _to_unreachable,
    "RequestTimeoutException": _to_unreachable,
    "InternalError": _to_unreachable,
    "InternalFailure": _to_unreachable,
    "InternalServiceFault": _to_unreachable,
    "ServiceUnavailable": _to_unreachable,
    "Unavailable": _to_unreachable,
}

_FALLBACKS: Final[tuple[tuple[Callable[[AwsError], bool], ErrorMapper], ...]] = (
    (lambda said: said.status == 429, _to_throttled),  # noqa: PLR2004  the only status that has a code's meaning
    (lambda said: not said.code or said.code.isdigit(), _to_unreachable),
    (lambda said: said.status >= 500, _to_unreachable),  # noqa: PLR2004  likewise
    (lambda said: said.code.endswith("LimitExceeded"), lambda said: _to_quota_exceeded(said.code)(said)),
    (lambda said: said.code.startswith(("Invalid", "Missing", "Unknown", "Malformed")), _to_stuck("RequestInvalid")),
)
"""Errors whose code the table does not name; the first match counts. An answer without a code is not AWS's."""


def map_error(said: AwsError) -> LcmError:
    """Return our error for an error of AWS. An unknown one is Stuck: it needs a person."""
    named = _CODES.get(said.code)
    if named is not None:
        return named(said)
    return next((means for fits, means in _FALLBACKS if fits(said)), _to_stuck("CloudRefused"))(said)


@contextmanager
def translate_errors(action: str, machine: str = "") -> Iterator[None]:
    """Raise our errors instead of AWS's and its library's. Only their code and our reading of answers runs inside.

    The vendor's error is not kept as the cause: what it says is in the message, without the secrets.
    """
    try:
        yield
    except ClientError as error:
        raise map_error(_parse_error(action, error, machine)) from None
    except (NoCredentialsError, PartialCredentialsError, CredentialRetrievalError) as error:
        raise Unauthorized(f"{action}: no usable credentials: {type(error).__name__}", action=action) from None
    except (ParamValidationError, ValidationError, NoRegionError) as error:
        raise Stuck("RequestInvalid", f"{action}: {redact(str(error))}") from None
    except _NO_ANSWER as error:
        raise Unreachable(f"{action}: no answer: {type(error).__name__}: {redact(str(error))}") from None
    except _MALFORMED_ANSWER as error:
        raise Unreachable(f"{action}: not an answer of AWS: {type(error).__name__}: {redact(str(error))}") from None


def require_aws_answer(answer: T) -> T:
    """Return an answer that AWS wrote, or raise LookupError.

    The library takes any well-formed page, such as a proxy's, for an empty answer.
    """
    if not cast("Mapping[str, Any]", answer)["ResponseMetadata"].get("RequestId"):
        raise LookupError("it has no request id")
    return answer


def _parse_error(action: str, refusal: ClientError, machine: str) -> AwsError:
    error = refusal.response.get("Error", {})
    status = refusal.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return AwsError(action, str(error.get("Code", "")), str(error.get("Message", "")), status, machine)
