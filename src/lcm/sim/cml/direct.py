"""The simulator's direct interface: `LabHost` on the engine, without a network. Simulations use it for speed.

Every effect suspends once before and once after it, so that a caller can be stopped on either side. A question has
none, and suspends once.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Final, TypeVar

import msgspec

from lcm.model.access.secret import Secret
from lcm.model.base.errors import Gone, Later, LcmError, NoRoom, Unreachable
from lcm.providers.cml.polling import poll_until
from lcm.providers.protocols.labhost import (
    Activity,
    CmlApiError,
    CmlAuthenticationError,
    CmlLabCreationError,
    CmlLicensingError,
    Elements,
    HostHealth,
    LabHost,
    LabSummary,
    Licence,
    Maintenance,
    NodeDefinition,
    NodeFacts,
    NotReady,
    PoolUse,
    SimulationStats,
    Stats,
    System,
)
from lcm.providers.protocols.permit import check_permit
from lcm.sim.cml import facts
from lcm.sim.cml.engine import Cml
from lcm.sim.cml.faults import CmlDown, CmlRefusal, bad_request
from lcm.sim.cml.licence import EXPANSION
from lcm.sim.cml.parts import NodeState, SimLab
from lcm.sim.cml.rest.documents import Credentials, FeatureCount, NodeUpdate, Registration
from lcm.sim.cml.rest.views import element_states
from lcm.sim.cml.topology import write_lab_file
from lcm.sim.cml.users import User
from lcm.sim.time.faults import ActiveFaults, PlannedFailures
from lcm.system.tasks import NEXT_TURN

T = TypeVar("T")

POLL_SECONDS: Final = 2.0
REMOVAL_SECONDS: Final = 600.0
LICENCE_SECONDS: Final = 150.0
_ERRORS_BY_STATUS: Final[Mapping[int, type[LcmError]]] = {404: Gone, 409: Later}
"""What these statuses of a refusal mean, whatever was asked."""


class DirectHost:
    """One simulated machine as a `LabHost`."""

    def __init__(
        self, cml: Cml, username: str = "admin", password: Secret | None = None, *, spells: ActiveFaults | None = None
    ) -> None:
        """Speak to a CML; `spells` are the faults on the way to all of them."""
        self._cml = cml
        self._credentials = Credentials(username, (password or Secret("admin")).reveal())
        self._failures = PlannedFailures(LabHost, cml.spells, *([spells] if spells is not None else []))
        self.fail_next = self._failures.fail_next
        self._described: dict[str, NodeFacts] = {}
        self._nodes_by_lab: Mapping[str, Sequence[NodeFacts]] = {}
        self._described_number = 0

    async def sign_in(self) -> None:
        async with self._verb("sign_in"):
            pass

    async def system(self) -> System:
        return await self._ask("system", lambda: System(version=self._cml.machine.version, ready=True), sign_in=False)

    async def health(self) -> HostHealth:
        return await self._ask("health", lambda: facts.health_facts(self._cml))

    async def stats(self) -> Stats:
        return await self._ask("stats", lambda: facts.stats_facts(self._cml))

    async def maintenance(self) -> Maintenance:
        return await self._ask("maintenance", lambda: facts.maintenance_facts(self._cml))

    async def licence(self) -> Licence:
        return await self._ask("licence", lambda: facts.licence_facts(self._cml))

    async def register(self, *, product: str, token: Secret, expansion_nodes: int = 0) -> Licence:
        licence = self._cml.licence
        async with self._verb("register", CmlLicensingError):
            if licence.registration() == "COMPLETED" and licence.product != product:
                check_permit()
                licence.deregister(running_nodes=len(self._cml.active_nodes()))
            if licence.product != product:
                check_permit()
                licence.set_product(product)
            if licence.registration() in {"NOT_REGISTERED", "FAILED", "RETRY_IN_PROGRESS"}:
                check_permit()
                licence.register(_check_document({"token": token.reveal(), "reregister": True}, Registration))
        registered = await self._wait_for_licence(lambda now: now.is_registered or now.registration == "FAILED")
        if not registered.is_registered:
            raise CmlLicensingError("LicenceTokenRefused", f"CML could not register: {registered.failure}")
        async with self._verb("register", CmlLicensingError):
            if licence.expansion != expansion_nodes:
                check_permit()
                licence.set_features([FeatureCount(EXPANSION, expansion_nodes)])
        return await self._wait_for_licence(lambda now: now.in_compliance)

    async def deregister(self) -> Licence:
        async with self._verb("deregister", Later):
            licence = self._cml.licence
            running = len(self._cml.active_nodes())
            if licence.registration() == "NOT_REGISTERED":
                return facts.licence_facts(self._cml)
            check_permit()
            if not licence.deregister(running_nodes=running):
                raise CmlLicensingError("LicenceSeatNotReturned", "CML could not tell the licence server")
            return facts.licence_facts(self._cml)

    async def labs(self) -> Sequence[LabSummary]:
        return await self._ask("labs", lambda: [facts.lab_facts(self._cml, lab) for lab in self._cml.labs])

    async def find(self, title: str) -> LabSummary | None:
        return await self._ask("find", lambda: self._find(title))

    async def look(self, lab_id: str) -> LabSummary | None:
        def read() -> LabSummary | None:
            lab = self._cml.labs.find(lab_id)
            return facts.lab_facts(self._cml, lab) if lab else None

        return await self._ask("look", read)

    async def ensure(self, title: str, topology: str) -> LabSummary:
        async with self._verb("ensure", CmlLabCreationError) as user:
            found = self._find(title)
            if found is None:
                check_permit()
                lab, _ = self._cml.import_lab(topology, user, title)
                found = facts.lab_facts(self._cml, lab)
            return found

    async def start(self, lab_id: str) -> None:
        async with self._verb("start", NoRoom):
            check_permit()
            self._cml.labs.start(self._lab(lab_id))

    async def converged(self, lab_id: str) -> bool:
        return await self._ask("converged", lambda: self._lab(lab_id).is_converged(self._cml.pace.age()))

    async def stop(self, lab_id: str) -> None:
        async with self._verb("stop"):
            check_permit()
            self._cml.labs.stop(self._lab(lab_id))

    async def remove(self, lab_id: str) -> None:
        await poll_until(
            lambda gone: gone,
            lambda: self._next_removal_step(lab_id),
            every_seconds=POLL_SECONDS,
            within_seconds=REMOVAL_SECONDS,
            late=lambda _: Later(f"the removal of lab {lab_id} takes long"),
        )

    async def elements(self, lab_id: str) -> Elements:
        return await self._ask("elements", lambda: Elements(**element_states(self._lab(lab_id), self._cml.pace.age())))

    async def nodes(self, lab_id: str) -> Sequence[NodeFacts]:
        return await self._ask("nodes", lambda: facts.lab_nodes(self._lab(lab_id), self._cml.pace.age()))

    async def all_nodes(self) -> Mapping[str, Sequence[NodeFacts]]:
        return await self._ask("all_nodes", self._describe_nodes)

    async def simulation_stats(self, lab_id: str) -> SimulationStats:
        return await self._ask("simulation_stats", lambda: facts.usage_facts(self._cml, self._lab(lab_id)))

    async def topology(self, lab_id: str) -> str:
        async with self._verb("topology"):
            lab = self._lab(lab_id)
            for node in lab.nodes.values():
                if node.life.state(self._cml.pace.age()) is NodeState.BOOTED:
                    check_permit()
                    self._cml.labs.extract(node)
            self._cml.telemetry.record("export_lab", lab_id=lab.id)
            return write_lab_file(lab)

    async def set_tags(self, lab_id: str, node_id: str, tags: Sequence[str]) -> None:
        async with self._verb("set_tags"):
            lab = self._lab(lab_id)
            wanted = _check_document({"tags": list(tags)}, NodeUpdate)
            check_permit()
            self._cml.labs.change_node(lab, self._cml.labs.node(lab, node_id), wanted)

    async def pools(self) -> Sequence[PoolUse]:
        return await self._ask("pools", lambda: facts.all_pools(self._cml))

    async def activity(self, *, since: datetime) -> Sequence[Activity]:
        return await self._ask("activity", lambda: facts.activity_after(self._cml, since))

    async def set_telemetry(self, *, enabled: bool) -> None:
        async with self._verb("set_telemetry"):
            check_permit()
            self._cml.telemetry.opt_in = enabled

    async def node_definitions(self) -> Sequence[NodeDefinition]:
        return await self._ask(
            "node_definitions", lambda: [facts.definition_facts(kind) for kind in self._cml.labs.kinds.values()]
        )

    async def close(self) -> None:
        await NEXT_TURN

    async def _ask(self, verb: str, read: Callable[[], T], *, sign_in: bool = True) -> T:
        """Return an answer, or raise what goes wrong on the way. It has no effect, so it suspends once only."""
        await NEXT_TURN
        failures = self._failures
        if failures.is_active(verb):
            await failures.delay_call(verb)
            failures.raise_before_effect(verb)
        try:
            if sign_in:
                self._check_sign_in()
            else:
                self._cml.check_up()
            answer = read()
        except (CmlDown, CmlRefusal) as error:
            raise _translate(error, CmlApiError) from error
        if failures.is_active(verb):
            failures.raise_after_effect(verb)
        return answer

    def _verb(self, verb: str, refused: type[LcmError] = CmlApiError) -> "_VerbScope":
        """Surround a verb's effect with what can go wrong; `refused` is the error that CML's refusal means for it."""
        return _VerbScope(verb, refused, self._failures, self._check_sign_in)

    def _check_sign_in(self) -> User:
        self._cml.check_up()
        try:
            user = self._cml.users.check(self._credentials)
        except CmlRefusal as error:
            raise CmlAuthenticationError("CmlCredentialsRefused", str(error)) from error
        if not user.admin:
            raise CmlAuthenticationError("CmlUserNotAllowed", f"{user.username} is no administrator")
        return user

    def _describe_nodes(self) -> Mapping[str, Sequence[NodeFacts]]:
        """Describe the nodes of each lab; the same object is returned until anything changes."""
        number = self._cml.labs.state_number()
        if number != self._described_number:
            self._described_number = number
            self._described = known = facts.describe_nodes(self._cml, self._described)
            self._nodes_by_lab = {lab.id: [known[ref] for ref in lab.nodes] for lab in self._cml.labs if lab.nodes}
        return self._nodes_by_lab

    def _lab(self, lab_id: str) -> SimLab:
        return self._cml.labs.get(lab_id)

    def _find(self, title: str) -> LabSummary | None:
        named = [facts.lab_facts(self._cml, lab) for lab in self._cml.labs if lab.title == title]
        return min(named, key=lambda lab: (str(lab.created_at), lab.lab_id), default=None)

    async def _wait_for_licence(self, done: Callable[[Licence], bool]) -> Licence:
        return await poll_until(
            done, self.licence, every_seconds=POLL_SECONDS, within_seconds=LICENCE_SECONDS, late=_late_licence_error
        )

    async def _next_removal_step(self, lab_id: str) -> bool:
        """Take the next step that the lab's state allows; return True when nothing is left."""
        labs = self._cml.labs
        try:
            async with self._verb("remove"):
                lab = self._lab(lab_id)
                check_permit()
                {NodeState.STARTED: labs.stop, NodeState.STOPPED: labs.wipe}.get(
                    lab.state(self._cml.pace.age()), labs.delete
                )(lab)
                return all(other.id != lab_id for other in labs)
        except Gone:
            return True
        except CmlApiError:
            return False


class _VerbScope:
    """What surrounds a verb's effect."""

    __slots__ = ("_failures", "_refused", "_sign_in", "_verb")

    def __init__(
        self, verb: str, refused: type[LcmError], failures: PlannedFailures, sign_in: Callable[[], User]
    ) -> None:
        self._verb = verb
        self._refused = refused
        self._failures = failures
        self._sign_in = sign_in

    async def __aenter__(self) -> User:
        await NEXT_TURN
        await self._failures.delay_call(self._verb)
        self._failures.raise_before_effect(self._verb)
        try:
            return self._sign_in()
        except (CmlDown, CmlRefusal) as error:
            raise _translate(error, self._refused) from error

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, CmlDown | CmlRefusal):
            raise _translate(error, self._refused) from error
        if error is None:
            await NEXT_TURN
            self._failures.raise_after_effect(self._verb)


def _check_document(document: object, shape: type[T]) -> T:
    """Convert a document; refuse what the REST interface refuses."""
    try:
        return msgspec.convert(document, shape)
    except msgspec.ValidationError as error:
        raise bad_request(str(error)) from error


def _translate(error: CmlDown | CmlRefusal, refused: type[LcmError]) -> LcmError:
    if isinstance(error, CmlDown):
        return (NotReady if error.there else Unreachable)(str(error))
    meaning = _ERRORS_BY_STATUS.get(error.status, refused)
    text = error.description
    return CmlLicensingError("CmlLicenceRefused", text) if meaning is CmlLicensingError else meaning(text)


def _late_licence_error(now: Licence) -> LcmError:
    if now.authorization == "OUT_OF_COMPLIANCE":
        return CmlLicensingError("LicenceOutOfCompliance", "no licence seat is free: free one or buy more")
    return Later(f"the licence takes long: CML says {now.registration} and {now.authorization}")
