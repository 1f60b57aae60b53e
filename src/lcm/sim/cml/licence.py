"""A simulated CML's licence, and the licence server that several machines share.

A registration is accepted at once and shows its outcome after a while, as with the real one. A seat stays taken at the
server until the machine returns it, even if the machine is gone.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from lcm.providers.protocols.labhost import node_limit
from lcm.sim.cml.faults import CmlRefusal, bad_request
from lcm.sim.cml.labs import CmlCore
from lcm.sim.cml.rest.documents import FeatureCount, Json, LicenceTransport, Registration

_EXPANDABLE: Final = ("CML_Enterprise", "CML_Education", "CML_Internal", "CML_NotForResale")
REGISTER_SECONDS: Final = 8.0
AUTHORIZE_SECONDS: Final = 4.0
PRODUCTS: Final = ("CML_Personal", "CML_Personal40", *_EXPANDABLE)

SSMS: Final = "https://smartreceiver.cisco.com/licservice/license"
BASE: Final = "regid.2019-10.com.cisco.CML_ENT_BASE,1.0_15d3393c-846c-4e00-a54e-1ea90f2b2160"
EXPANSION: Final = "regid.2019-10.com.cisco.CML_NODE_COUNT,1.0_2607650b-6ca8-46d5-81e5-e6688b7383c4"


@dataclass(slots=True)
class LicenceServer:
    """The account from which machines take their licences."""

    seats: int = 1_000
    expansion_nodes: int = 500
    reachable: bool = True
    bad_tokens: set[str] = field(default_factory=lambda: {"bad-token", "expired-token"})
    taken: dict[str, str] = field(default_factory=dict)
    """The product that each machine holds, by the machine's own id."""


@dataclass(slots=True)
class RegistrationAttempt:
    """A registration that was requested."""

    age: float
    token: str
    outcome: str
    compliant: bool


class Licensing:
    """The licence of one machine."""

    def __init__(self, core: CmlCore, server: LicenceServer, udi: str) -> None:
        self._core = core
        self._server = server
        self.attempt: RegistrationAttempt | None = None
        self.udi = udi
        self.product = "CML_Enterprise"
        self.expansion = 0
        self.transport = LicenceTransport()

    def registration(self) -> str:
        """Return the registration's status in CML's words."""
        if self.attempt is None:
            return "NOT_REGISTERED"
        waited = self._core.pace.age() - self.attempt.age
        return "IN_PROGRESS" if waited < REGISTER_SECONDS else self.attempt.outcome

    def authorization(self) -> str:
        """Return the authorization's status in CML's words."""
        if self.attempt is None:
            return "INIT"
        waited = self._core.pace.age() - self.attempt.age
        if self.registration() != "COMPLETED" or waited < REGISTER_SECONDS + AUTHORIZE_SECONDS:
            return "EVAL"
        return "IN_COMPLIANCE" if self.attempt.compliant else "OUT_OF_COMPLIANCE"

    def failure(self, *, hidden: bool = False) -> str:
        """Return why a registration failed; empty when it did not. CML quotes the token unless it is `hidden`."""
        if self.attempt is None or self.registration() not in {"FAILED", "RETRY_IN_PROGRESS"}:
            return ""
        if self.attempt.outcome == "RETRY_IN_PROGRESS":
            return "Fail to send out Call Home HTTP message."
        return f"The token '{'***' if hidden else self.attempt.token}' is not valid."

    @property
    def in_compliance(self) -> bool:
        return self.authorization() == "IN_COMPLIANCE"

    @property
    def node_limit(self) -> int:
        """How many nodes may run now."""
        return node_limit(self.product, in_compliance=self.in_compliance, expansion_nodes=self.expansion)

    def set_product(self, product: str) -> None:
        """Choose the product to register as."""
        if product not in PRODUCTS:
            raise bad_request(f"Unknown product license: {product}")
        if product == self.product:
            raise bad_request("The product license is already active.")
        self.product, self.expansion = product, 0
        if self.udi in self._server.taken:
            self._server.taken[self.udi] = product

    def register(self, wanted: Registration) -> None:
        """Accept a token; the outcome shows later."""
        if self.registration() == "COMPLETED" and not wanted.reregister:
            raise CmlRefusal(409, "The product is already registered.")
        self._core.on_effect("register", "")
        self.attempt = RegistrationAttempt(
            self._core.pace.age(), wanted.token, self._outcome(wanted.token), compliant=True
        )
        if self.attempt.outcome == "COMPLETED":
            self.attempt.compliant = self._take_seat()
        self._core.telemetry.record("license_info", product=self.product)

    def renew(self) -> None:
        """Ask the server again."""
        if self.registration() != "COMPLETED" or self.attempt is None:
            raise bad_request("The product is not registered.")
        self.attempt.compliant = self._take_seat()

    def deregister(self, *, running_nodes: int) -> bool:
        """Return the licence; False means the server could not be reached, so that the seat stays taken."""
        if self.attempt is None:
            raise bad_request("The product has already been deregistered.")
        if running_nodes:
            raise CmlRefusal(409, "Deregistration cannot be requested while nodes are running.")
        self._core.on_effect("deregister", "")
        self.attempt, self.expansion = None, 0
        if self._server.reachable:
            self._server.taken.pop(self.udi, None)
        return self._server.reachable

    def set_features(self, wanted: list[FeatureCount]) -> None:
        """Set how many of each feature are used; all or nothing."""
        limits = {one["id"]: (one["min"], one["max"]) for one in self.features()}
        if not 1 <= len(wanted) <= len(limits):
            raise bad_request("One or two features are expected.")
        for one in wanted:
            low, high = limits.get(one.id, (1, 0))
            if not low <= one.count <= high:
                raise bad_request(f"The count of feature {one.id} is not possible.")
        self.expansion = next((one.count for one in wanted if one.id == EXPANSION), self.expansion)

    def features(self) -> list[Json]:
        """List what the product consists of."""
        most = self._server.expansion_nodes if self.product in _EXPANDABLE else 0
        return [
            self._feature(BASE, f"{self.product.replace('_', ' - ')} License", 1, 1),
            self._feature(EXPANSION, "CML - Expansion Node License", self.expansion, most),
        ]

    def _feature(self, ref: str, name: str, used: int, most: int) -> Json:
        status = self.authorization() if used else "INIT"
        return {
            "id": ref,
            "name": name,
            "description": name,
            "in_use": used,
            "status": status,
            "version": "1.0",
            "min": 0,
            "max": most,
            "minEndDate": None,
            "maxEndDate": None,
        }

    def status(self) -> Json:
        """Return the licence as CML writes it."""
        attempted = self._core.pace.moment(self.attempt.age) if self.attempt else None
        expires = _stamp(attempted + timedelta(days=365)) if attempted and self.registration() == "COMPLETED" else None
        account = "Simulated account" if expires else None
        failure = self.failure() or "OK"
        proxy = self.transport.proxy
        return {
            "registration": {
                "status": self.registration(),
                "smart_account": account,
                "virtual_account": account,
                "expires": expires,
                "register_time": _times(attempted, failure),
                "renew_time": _times(None, "OK"),
            },
            "authorization": {"status": self.authorization(), "expires": expires, "renew_time": _times(None, "OK")},
            "features": self.features(),
            "reservation_mode": False,
            "transport": {
                "default_ssms": SSMS,
                "ssms": self.transport.ssms or SSMS,
                "proxy": {"server": proxy.server if proxy else None, "port": proxy.port if proxy else None},
            },
            "udi": {"hostname": "cml-controller", "product_uuid": self.udi},
            "product_license": {"active": self.product, "is_enterprise": self.product == "CML_Enterprise"},
        }

    def _outcome(self, token: str) -> str:
        if not self._server.reachable:
            return "RETRY_IN_PROGRESS"
        return "FAILED" if token in self._server.bad_tokens else "COMPLETED"

    def _take_seat(self) -> bool:
        if self.udi not in self._server.taken and len(self._server.taken) >= self._server.seats:
            return False
        self._server.taken[self.udi] = self.product
        return True


def _stamp(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S}"


def _times(attempted: datetime | None, failure: str) -> Json:
    return {
        "succeeded": None,
        "attempted": _stamp(attempted) if attempted else None,
        "scheduled": None,
        "status": None,
        "failure": failure,
        "success": "SUCCESS" if failure == "OK" else "FAILED",
    }
