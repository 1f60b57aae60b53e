"""What AWS's errors mean to us, in one table: by service, then by code, by HTTP status, or by what the library raised.

Every call to AWS is made, and every answer read, within `translate_errors`.
"""

import re
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeVar, cast

import aiohttp
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    NoCredentialsError,
    NoRegionError,
    ParamValidationError,
    PartialCredentialsError,
    ProfileNotFound,
    SSLError,
    ValidationError,
)
from botocore.parsers import ResponseParserError

from lcm.model.base.errors import Gone, Later, LcmError, Stuck, Throttled, TooLarge, Unreachable
from lcm.model.base.resource import shorten_text
from lcm.providers.protocols.compute import NoCapacity, QuotaExceeded, Unauthorized
from lcm.providers.protocols.secrets import MISSING, UNREADABLE

T = TypeVar("T")

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
_PLAIN_CODE: Final = re.compile(r"[A-Za-z0-9.]{1,64}")

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

_UNQUOTED: Final[Mapping[str, str]] = {"s3": "S3", "secretsmanager": "AWS Secrets Manager"}
"""Services of which messages quote nothing: what is not understood may hold an artifact, our request, or a secret."""


@dataclass(frozen=True)
class AwsError:
    """One error of AWS or its library, and what it was about: a machine type, an object, a secret.

    The code is the name of the library's exception, and the status 0, where AWS gave no answer.
    """

    action: str
    code: str
    text: str
    status: int
    subject: str = ""

    @property
    def service(self) -> str:
        return self.action.partition(":")[0]

    def describe(self, meaning: str = "") -> str:
        """Return a message that says what happened and what it means."""
        name = _UNQUOTED.get(self.service)
        if name is None:
            return f"{self.action}: {self.code}: {redact(self.text)}" + (f"; AWS {meaning}" if meaning else "")
        answer = f"HTTP {self.status} " if self.status else ""
        known = not self.status or self.code in _rows_of(self.service)
        # A proxy may put anything in place of a code; of secrets we do not show even what looks like one.
        plain = known or (self.service == "s3" and _PLAIN_CODE.fullmatch(self.code))
        code = self.code if plain else "without a known code"
        return f"{name} {meaning} ({self.action} on {self.subject}: {answer}{code})"


ErrorMapper = Callable[[AwsError], LcmError]
_Rows = dict[str | int | type[Exception], ErrorMapper]


def redact(text: str) -> str:
    """Remove keys, signatures and encoded messages from a vendor's text, and shorten it."""
    return shorten_text(_SECRETS.sub("***", text), _MAX_TEXT)


def vcpu_quota(machine: str) -> str:
    """Return the name of the quota that counts a machine type's virtual CPUs."""
    family = _FAMILY.match(machine)
    kind = _VCPU_QUOTAS.get(family[0], "") if family else ""
    return f"Running On-Demand {kind or 'Standard (A, C, D, H, I, M, R, T, Z)'} instances"


def _to(kind: type[LcmError], meaning: str = "") -> ErrorMapper:
    return lambda said: kind(said.describe(meaning))


def _to_later(kind: type[Later], meaning: str = "") -> ErrorMapper:
    return lambda said: kind(said.describe(meaning), after=timedelta(seconds=5))


def _to_stuck(reason: str, meaning: str = "") -> ErrorMapper:
    return lambda said: Stuck(reason, said.describe(meaning.format(action=said.action)))


def _to_quota_exceeded(name: str) -> ErrorMapper:
    return lambda said: QuotaExceeded(said.describe(f"needs a higher quota «{name}»"), quota=name)


def _to_vcpu_quota(said: AwsError) -> LcmError:
    return _to_quota_exceeded(vcpu_quota(said.subject))(said)


def _to_volume_quota(said: AwsError) -> LcmError:
    kind = _VOLUME.search(said.text)
    family = "General Purpose" if kind and kind[0].startswith("gp") else "Provisioned IOPS"
    return _to_quota_exceeded(f"Storage for {family} SSD ({kind[0] if kind else 'io1'}) volumes, in TiB")(said)


def _to_unauthorized(said: AwsError) -> LcmError:
    named = _ACTION.search(said.text)
    action = named[1] if named else said.action
    # The vendor's own text names accounts and carries encoded policies.
    return Unauthorized(f"{said.action}: {said.code}: the credentials may not do {action}", action=action)


def _to_bad_credentials(said: AwsError) -> LcmError:
    if said.service in _UNQUOTED:
        return Stuck("Credentials", said.describe("does not accept our credentials; correct or renew them"))
    return Unauthorized(f"{said.action}: {said.code}: AWS does not accept the credentials", action=said.action)


def _to_no_credentials(said: AwsError) -> LcmError:
    if said.service in _UNQUOTED:
        return Stuck("Credentials", said.describe("cannot be asked without credentials"))
    return Unauthorized(f"{said.action}: no usable credentials: {said.code}", action=said.action)


def _to_distrust(said: AwsError) -> LcmError:
    if "CERTIFICATE_VERIFY_FAILED" not in said.text:
        return _NO_ANSWER(said)
    return Stuck("Certificate", said.describe("shows a certificate that we do not trust"))


def _to_missing_object(said: AwsError) -> LcmError:
    return Gone(said.describe("has no such object")) if said.status == 404 else _NOT_AWS(said)  # noqa: PLR2004


_NO_ANSWER: Final = _to(Unreachable, "gave no whole answer")
_NOT_AWS: Final = _to(Unreachable, "did not write this answer")
_FAILED: Final = _to_later(Unreachable, "failed")
_SLOW: Final = _to_later(Throttled, "asks us to slow down")
_BUSY: Final = _to_later(Later, "cannot do it yet")
_FULL: Final = _to_later(Later, "is full")
_CORRUPTED: Final = _to_later(Unreachable, "got other bytes than we sent")
_NO_CAPACITY: Final = _to(NoCapacity)
_BAD_REQUEST: Final = _to_stuck("RequestInvalid")
_REFUSED: Final = _to_stuck("Refused", "refused the request")
_REGION: Final = _to_stuck("WrongRegion", "has the bucket in another region; correct the region")
_S3_DENIED: Final = _to_stuck(
    "AccessDenied", "denies access; allow {action}, and s3:ListBucket so that a missing key is reported as such"
)
_SECRET_DENIED: Final = _to_stuck("AccessDenied", "denies access; allow {action}")
_BAD_NAME: Final = _to_stuck(UNREADABLE, "says that this is not a secret's name; correct it")

_ANY: Final = ""
_ROWS: Final[dict[str, _Rows]] = {
    _ANY: {
        "RequestLimitExceeded": _SLOW,
        "BandwidthLimitExceeded": _SLOW,
        "Throttling": _SLOW,
        "ThrottlingException": _SLOW,
        "ThrottledException": _SLOW,
        "RequestThrottled": _SLOW,
        "RequestThrottledException": _SLOW,
        "TooManyRequests": _SLOW,
        "TooManyRequestsException": _SLOW,
        "SlowDown": _SLOW,
        429: _SLOW,
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
        "MissingAuthenticationTokenException": _to_bad_credentials,
        "RequestTimeout": _FAILED,
        "RequestTimeoutException": _FAILED,
        "InternalError": _FAILED,
        "InternalFailure": _FAILED,
        "InternalServiceFault": _FAILED,
        "ServiceUnavailable": _FAILED,
        "Unavailable": _FAILED,
        NoCredentialsError: _to_no_credentials,
        PartialCredentialsError: _to_no_credentials,
        CredentialRetrievalError: _to_no_credentials,
        ProfileNotFound: _to_no_credentials,
        ParamValidationError: _BAD_REQUEST,
        ValidationError: _BAD_REQUEST,
        NoRegionError: _BAD_REQUEST,
        SSLError: _to_distrust,
        BotoCoreError: _NO_ANSWER,
        aiohttp.ClientError: _NO_ANSWER,
        OSError: _NO_ANSWER,
        # What the library's parsers, and our reading of what they parsed, raise over an answer of another shape.
        ResponseParserError: _NOT_AWS,
        ValueError: _NOT_AWS,
        TypeError: _NOT_AWS,
        AttributeError: _NOT_AWS,
        LookupError: _NOT_AWS,
    },
    "ec2": {
        "InsufficientInstanceCapacity": _NO_CAPACITY,
        "InsufficientHostCapacity": _NO_CAPACITY,
        "InsufficientCapacity": _NO_CAPACITY,
        "InsufficientAddressCapacity": _NO_CAPACITY,
        "InsufficientFreeAddressesInSubnet": _NO_CAPACITY,
        "InsufficientVolumeCapacity": _NO_CAPACITY,
        "InsufficientReservedInstanceCapacity": _NO_CAPACITY,
        "UnfulfillableCapacity": _NO_CAPACITY,
        "VolumeTypeNotAvailableInZone": _NO_CAPACITY,
        "Unsupported": _NO_CAPACITY,
        "VcpuLimitExceeded": _to_vcpu_quota,
        "InstanceLimitExceeded": _to_vcpu_quota,
        "MaxSpotInstanceCountExceeded": _to_quota_exceeded("All Standard Spot Instance Requests"),
        "MaxIOPSLimitExceeded": _to_quota_exceeded("IOPS for Provisioned IOPS SSD (io1) volumes"),
        "VolumeLimitExceeded": _to_volume_quota,
        "NetworkInterfaceLimitExceeded": _to_quota_exceeded("Network interfaces per Region"),
        "AddressLimitExceeded": _to_quota_exceeded("EC2-VPC Elastic IPs"),
        "EC2ThrottledException": _SLOW,
        "InvalidInstanceID.NotFound": _to(Gone),
        "IncorrectInstanceState": _BUSY,
        "IncorrectState": _BUSY,
        "ConcurrentTagAccess": _BUSY,
        "PendingVerification": _BUSY,
        "IdempotentParameterMismatch": _to_stuck(REUSED_LAUNCH, "has launched something else with this token"),
        "IdempotentInstanceTerminated": _to_stuck(SPENT_LAUNCH, "needs a new token for a new attempt"),
        "OperationNotPermitted": _to_stuck("Protected"),
        "UnsupportedOperation": _to_stuck(UNSUPPORTED),
    },
    "s3": {
        "NoSuchKey": _to_missing_object,
        "NoSuchBucket": _to_stuck("NoSuchBucket", "has no such bucket; create it or correct its name"),
        "AccessDenied": _S3_DENIED,
        "AllAccessDisabled": _S3_DENIED,
        "AccountProblem": _S3_DENIED,
        "InvalidAccessKeyId": _to_bad_credentials,
        "InvalidToken": _to_bad_credentials,
        "TokenRefreshRequired": _to_bad_credentials,
        "PermanentRedirect": _REGION,
        "AuthorizationHeaderMalformed": _REGION,
        "IllegalLocationConstraintException": _REGION,
        "RequestTimeTooSkewed": _to_stuck("ClockSkew", "says that our clock is wrong; correct it"),
        "InvalidObjectState": _to_stuck("Archived", "has the object in an archive; restore it"),
        "EntityTooLarge": _to(TooLarge, "says that the object is too large"),
        "XMinioStorageFull": _FULL,
        "XMinioAdminBucketQuotaExceeded": _FULL,
        "QuotaExceeded": _FULL,
        "SlowDownRead": _SLOW,
        "SlowDownWrite": _SLOW,
        "ServiceUnavailable": _SLOW,
        "OperationAborted": _FAILED,
        "IncompleteBody": _CORRUPTED,
        "BadDigest": _CORRUPTED,
        "XAmzContentSHA256Mismatch": _CORRUPTED,
        "XAmzContentChecksumMismatch": _CORRUPTED,
        # HEAD has no code at all.
        301: _REGION,
        403: _S3_DENIED,
        404: _NOT_AWS,
        408: _FAILED,
        503: _SLOW,
    },
    "secretsmanager": {
        "ResourceNotFoundException": _to_stuck(MISSING, "has no such secret; create it, or correct name and region"),
        "InvalidRequestException": _to_stuck(MISSING, "is about to delete this secret, or has no value of it yet"),
        "InvalidParameterException": _BAD_NAME,
        "ValidationException": _BAD_NAME,
        "DecryptionFailure": _to_stuck(UNREADABLE, "cannot decrypt this secret; allow kms:Decrypt with its key"),
        "AccessDeniedException": _SECRET_DENIED,
        "AccessDenied": _SECRET_DENIED,
        "OptInRequired": _to_bad_credentials,
        "LimitExceededException": _SLOW,
        "InternalServiceError": _FAILED,
        "ServiceUnavailableException": _FAILED,
        ParamValidationError: _BAD_NAME,
        NoRegionError: _to_stuck("Region", "cannot be asked without a region"),
    },
}

_RULES: Final[Mapping[str, tuple[tuple[Callable[[AwsError], bool], ErrorMapper], ...]]] = {
    _ANY: (
        # An answer without a code is not AWS's.
        (lambda said: not said.code or said.code.isdigit() or said.status >= 500, _FAILED),  # noqa: PLR2004
        (lambda said: said.code.endswith("LimitExceeded"), lambda said: _to_quota_exceeded(said.code)(said)),
        (lambda said: said.code.startswith(("Invalid", "Missing", "Unknown", "Malformed")), _BAD_REQUEST),
        (lambda _: True, _to_stuck("CloudRefused")),
    ),
    "s3": ((lambda said: 400 <= said.status < 500, _REFUSED), (lambda _: True, _FAILED)),  # noqa: PLR2004
    "secretsmanager": (
        (lambda said: said.code.endswith("Exception") and said.status < 500, _REFUSED),  # noqa: PLR2004
        (lambda _: True, _FAILED),
    ),
}
"""What the table does not name; the first match counts. An unknown refusal is Stuck: it needs a person."""

_LIBRARY_ERRORS: Final = tuple(key for key in _ROWS[_ANY] if isinstance(key, type))


@contextmanager
def translate_errors(action: str, subject: str = "") -> Iterator[None]:
    """Raise our errors instead of AWS's and its library's. Only their code and our reading of answers runs inside.

    The vendor's error is not kept as the cause: what may be told of it is in the message.
    """
    try:
        yield
    except ClientError as error:
        told = error.response.get("Error", {})
        code, text = str(told.get("Code", "")), str(told.get("Message", ""))
        raise map_error(AwsError(action, code, text, status_of(error), subject)) from None
    except _LIBRARY_ERRORS as error:
        said = AwsError(action, type(error).__name__, str(error), 0, subject)
        rows = _rows_of(said.service)
        raise next(rows[kind] for kind in type(error).__mro__ if kind in rows)(said) from None


def map_error(said: AwsError) -> LcmError:
    """Return our error for an answer of AWS."""
    rows = _rows_of(said.service)
    named = rows.get(said.code) or rows.get(said.status)
    return (named or next(means for fits, means in _RULES.get(said.service, _RULES[_ANY]) if fits(said)))(said)


def _rows_of(service: str) -> ChainMap[str | int | type[Exception], ErrorMapper]:
    return ChainMap(_ROWS.get(service, {}), _ROWS[_ANY])


def require_aws_answer(answer: T) -> T:
    """Return an answer that AWS wrote, or raise LookupError.

    The library takes any well-formed page, such as a proxy's, for an empty answer.
    """
    if not cast("Mapping[str, Any]", answer)["ResponseMetadata"].get("RequestId"):
        raise LookupError("it has no request id")
    return answer


def status_of(error: ClientError) -> int:
    """Return the HTTP status of an answer, 0 if there was none."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
