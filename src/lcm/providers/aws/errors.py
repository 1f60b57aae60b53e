"""What AWS's errors mean to us, in one table by code. `ec2_clients`, `ec2` and `cloudwatch` read answers within it."""

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
from lcm.providers.protocols.compute import NoCapacity, QuotaExceeded, Unauthorized

T = TypeVar("T")

_NO_ANSWER = (BotoCoreError, OSError)
_ODD_ANSWER = (ResponseParserError, ValueError, TypeError, AttributeError, LookupError)
"""What botocore's parsers, and our reading of what they parsed, raise over an answer of another shape."""

REUSED: Final = "TokenReused"
"""The launch's token has launched something with other parameters."""
SPENT: Final = "TokenSpent"
"""What the launch's token launched has been terminated."""
UNSUPPORTED: Final = "Unsupported"
"""This kind of machine cannot do it."""

_LONGEST: Final = 500
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
class Said:
    """One error of AWS: what we asked, the code, the text, the HTTP status, and the machine type it was about."""

    action: str
    code: str
    text: str
    status: int
    machine: str = ""

    def __str__(self) -> str:
        return f"{self.action}: {self.code}: {clean(self.text)}"


Meaning = Callable[[Said], LcmError]


def clean(text: str) -> str:
    """Take keys, signatures and encoded messages out of a vendor's text, and its end if it is long."""
    return _SECRETS.sub("***", text)[:_LONGEST]


def vcpu_quota(machine: str) -> str:
    """Name the quota that counts a machine type's virtual CPUs."""
    family = _FAMILY.match(machine)
    kind = _VCPU_QUOTAS.get(family[0], "") if family else ""
    return f"Running On-Demand {kind or 'Standard (A, C, D, H, I, M, R, T, Z)'} instances"


def _quota(name: str) -> Meaning:
    return lambda said: QuotaExceeded(f"{said}; raise the quota «{name}»", quota=name)


def _vcpu(said: Said) -> LcmError:
    return _quota(vcpu_quota(said.machine))(said)


def _volume(said: Said) -> LcmError:
    kind = _VOLUME.search(said.text)
    family = "General Purpose" if kind and kind[0].startswith("gp") else "Provisioned IOPS"
    return _quota(f"Storage for {family} SSD ({kind[0] if kind else 'io1'}) volumes, in TiB")(said)


def _no_capacity(said: Said) -> LcmError:
    return NoCapacity(str(said))


def _throttled(said: Said) -> LcmError:
    return Throttled(str(said), after=timedelta(seconds=5))


def _unreachable(said: Said) -> LcmError:
    return Unreachable(str(said), after=timedelta(seconds=5))


def _later(said: Said) -> LcmError:
    return Later(str(said), after=timedelta(seconds=5))


def _gone(said: Said) -> LcmError:
    return Gone(str(said))


def _denied(said: Said) -> LcmError:
    named = _ACTION.search(said.text)
    action = named[1] if named else said.action
    # The vendor's own text names accounts and carries encoded policies.
    return Unauthorized(f"{said.action}: {said.code}: the credentials may not do {action}", action=action)


def _bad_credentials(said: Said) -> LcmError:
    return Unauthorized(f"{said.action}: {said.code}: AWS does not accept the credentials", action=said.action)


def _stuck(reason: str, remark: str = "") -> Meaning:
    return lambda said: Stuck(reason, f"{said}; {remark}" if remark else str(said))


_CODES: Final[Mapping[str, Meaning]] = {
    "InsufficientInstanceCapacity": _no_capacity,
    "InsufficientHostCapacity": _no_capacity,
    "InsufficientCapacity": _no_capacity,
    "InsufficientAddressCapacity": _no_capacity,
    "InsufficientFreeAddressesInSubnet": _no_capacity,
    "InsufficientVolumeCapacity": _no_capacity,
    "InsufficientReservedInstanceCapacity": _no_capacity,
    "UnfulfillableCapacity": _no_capacity,
    "VolumeTypeNotAvailableInZone": _no_capacity,
    "Unsupported": _no_capacity,
    "VcpuLimitExceeded": _vcpu,
    "InstanceLimitExceeded": _vcpu,
    "MaxSpotInstanceCountExceeded": _quota("All Standard Spot Instance Requests"),
    "MaxIOPSLimitExceeded": _quota("IOPS for Provisioned IOPS SSD (io1) volumes"),
    "VolumeLimitExceeded": _volume,
    "NetworkInterfaceLimitExceeded": _quota("Network interfaces per Region"),
    "AddressLimitExceeded": _quota("EC2-VPC Elastic IPs"),
    "RequestLimitExceeded": _throttled,
    "BandwidthLimitExceeded": _throttled,
    "Throttling": _throttled,
    "ThrottlingException": _throttled,
    "ThrottledException": _throttled,
    "EC2ThrottledException": _throttled,
    "RequestThrottled": _throttled,
    "RequestThrottledException": _throttled,
    "TooManyRequests": _throttled,
    "TooManyRequestsException": _throttled,
    "SlowDown": _throttled,
    "UnauthorizedOperation": _denied,
    "AccessDenied": _denied,
    "AccessDeniedException": _denied,
    "OptInRequired": _denied,
    "AuthFailure": _bad_credentials,
    "ExpiredToken": _bad_credentials,
    "ExpiredTokenException": _bad_credentials,
    "RequestExpired": _bad_credentials,
    "InvalidClientTokenId": _bad_credentials,
    "UnrecognizedClientException": _bad_credentials,
    "SignatureDoesNotMatch": _bad_credentials,
    "InvalidSignatureException": _bad_credentials,
    "IncompleteSignature": _bad_credentials,
    "MissingAuthenticationToken": _bad_credentials,
    "InvalidInstanceID.NotFound": _gone,
    "IncorrectInstanceState": _later,
    "IncorrectState": _later,
    "ConcurrentTagAccess": _later,
    "PendingVerification": _later,
    "IdempotentParameterMismatch": _stuck(REUSED, "this token has launched something with other parameters"),
    "IdempotentInstanceTerminated": _stuck(SPENT, "a new attempt needs a new token"),
    "OperationNotPermitted": _stuck("Protected"),
    "UnsupportedOperation": _stuck(UNSUPPORTED),
    "RequestTimeout": _unreachable,
    "RequestTimeoutException": _unreachable,
    "InternalError": _unreachable,
    "InternalFailure": _unreachable,
    "InternalServiceFault": _unreachable,
    "ServiceUnavailable": _unreachable,
    "Unavailable": _unreachable,
}

_FAMILIES: Final[tuple[tuple[Callable[[Said], bool], Meaning], ...]] = (
    (lambda said: said.status == 429, _throttled),  # noqa: PLR2004  the only status that has a code's meaning
    (lambda said: not said.code or said.code.isdigit(), _unreachable),
    (lambda said: said.status >= 500, _unreachable),  # noqa: PLR2004  likewise
    (lambda said: said.code.endswith("LimitExceeded"), lambda said: _quota(said.code)(said)),
    (lambda said: said.code.startswith(("Invalid", "Missing", "Unknown", "Malformed")), _stuck("RequestInvalid")),
)
"""What codes mean that the table does not name; the first that fits. Without a code it was not AWS that spoke."""


def meaning(said: Said) -> LcmError:
    """Say what an error of AWS means to us. One that nobody has heard of wants a person."""
    named = _CODES.get(said.code)
    if named is not None:
        return named(said)
    return next((means for fits, means in _FAMILIES if fits(said)), _stuck("CloudRefused"))(said)


@contextmanager
def translated(action: str, machine: str = "") -> Iterator[None]:
    """Raise our errors instead of AWS's and its library's. Only their code, and our reading of answers, runs within.

    The vendor's error is not kept as the cause: what it says is in the message, without the secrets.
    """
    try:
        yield
    except ClientError as error:
        raise meaning(_said(action, error, machine)) from None
    except (NoCredentialsError, PartialCredentialsError, CredentialRetrievalError) as error:
        raise Unauthorized(f"{action}: no usable credentials: {type(error).__name__}", action=action) from None
    except (ParamValidationError, ValidationError, NoRegionError) as error:
        raise Stuck("RequestInvalid", f"{action}: {clean(str(error))}") from None
    except _NO_ANSWER as error:
        raise Unreachable(f"{action}: no answer: {type(error).__name__}: {clean(str(error))}") from None
    except _ODD_ANSWER as error:
        raise Unreachable(f"{action}: not an answer of AWS: {type(error).__name__}: {clean(str(error))}") from None


def genuine(answer: T) -> T:
    """Refuse what AWS did not write: the library takes any well-formed page, such as a proxy's, for an empty answer."""
    if not cast("Mapping[str, Any]", answer)["ResponseMetadata"].get("RequestId"):
        raise LookupError("it has no request id")
    return answer


def _said(action: str, refusal: ClientError, machine: str) -> Said:
    error = refusal.response.get("Error", {})
    status = refusal.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return Said(action, str(error.get("Code", "")), str(error.get("Message", "")), status, machine)
