"""The simulator's direct face: `LabHost` on the engine, without a network. Simulations use it for speed.

Every verb lets others run once before and once after its effect, so that a caller can be stopped on either side.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Final, TypeVar

import msgspec

from lcm.model.access.secret import Secret
from lcm.model.base.errors import Gone, Later, LcmError, NoRoom, Unreachable
from lcm.providers.cml.polling import until
from lcm.providers.protocols.labhost import (
    Activity,
    CmlApiError,
    CmlAuthenticationError,
    CmlLabCreationError,
    CmlLicensingError,
    Elements,
    Health,
    LabHost,
    LabSummary,
    Licence,
    Maintenance,
    NodeDefinition,
    NodeFacts,
    Notice,
    NotReady,
    PoolUse,
    SimulationStats,
    Stats,
    System,
)
from lcm.providers.protocols.permit import permit
from lcm.sim.cml import facts
from lcm.sim.cml.engine import Cml
from lcm.sim.cml.faults import Down, Refusal, bad
from lcm.sim.cml.licence import EXPANSION
from lcm.sim.cml.parts import Lab, State
from lcm.sim.cml.rest.documents import Credentials, FeatureCount, NodeUpdate, Registration
from lcm.sim.cml.rest.views import element_states
from lcm.sim.cml.topology import download
from lcm.sim.cml.users import User
from lcm.sim.time.faults import Failures, Spells

T = TypeVar("T")

POLL_SECONDS: Final = 2.0
REMOVAL_SECONDS: Final = 600.0
LICENCE_SECONDS: Final = 150.0
_ALWAYS: Final[Mapping[int, type[LcmError]]] = {404: Gone, 409: Later}
"""What these refusals mean, whatever was asked."""


class DirectHost:
    """One simulated machine as a `LabHost`."""

    def __init__(
        self, cml: Cml, username: str = "admin", password: Secret | None = None, *, spells: Spells | None = None
    ) -> None:
        """Speak to a CML; `spells` are those that lie on the way to all of them."""
        self._cml = cml
        self._credentials = Credentials(username, (password or Secret("admin")).reveal())
        self._failures = Failures(LabHost, cml.spells, *([spells] if spells is not None else []))
        self.fail_next = self._failures.fail_next

    async def sign_in(self) -> None:
        async with self._verb("sign_in"):
            pass

    async def system(self) -> System:
        async with self._verb("system", sign_in=False):
            return System(version=self._cml.machine.version, ready=True)

    async def health(self) -> Health:
        async with self._verb("health"):
            return facts.health_facts(self._cml)

    async def stats(self) -> Stats:
        async with self._verb("stats"):
            return facts.stats_facts(self._cml)

    async def maintenance(self) -> Maintenance:
        async with self._verb("maintenance"):
            shown = [
                Notice(notice_id=one.id, level=one.level, label=one.label, content=one.content)
                for one in self._cml.notices.all.values()
                if one.enabled
            ]
            return Maintenance(enabled=self._cml.notices.maintenance, notices=tuple(shown))

    async def licence(self) -> Licence:
        async with self._verb("licence"):
            return facts.licence_facts(self._cml)

    async def register(self, *, product: str, token: Secret, expansion_nodes: int = 0) -> Licence:
        licence = self._cml.licence
        async with self._verb("register", CmlLicensingError):
            if licence.registration() == "COMPLETED" and licence.product != product:
                permit()
                licence.deregister(running_nodes=len(self._cml.active_nodes()))
            if licence.product != product:
                permit()
                licence.set_product(product)
            if licence.registration() in {"NOT_REGISTERED", "FAILED", "RETRY_IN_PROGRESS"}:
                permit()
                licence.register(_checked({"token": token.reveal(), "reregister": True}, Registration))
        registered = await self._licence_until(lambda now: now.registered or now.registration == "FAILED")
        if not registered.registered:
            raise CmlLicensingError("LicenceTokenRefused", f"CML could not register: {registered.failure}")
        async with self._verb("register", CmlLicensingError):
            if licence.expansion != expansion_nodes:
                permit()
                licence.set_features([FeatureCount(EXPANSION, expansion_nodes)])
        return await self._licence_until(lambda now: now.in_compliance)

    async def deregister(self) -> Licence:
        async with self._verb("deregister", Later):
            licence = self._cml.licence
            running = len(self._cml.active_nodes())
            if licence.registration() == "NOT_REGISTERED":
                return facts.licence_facts(self._cml)
            permit()
            if not licence.deregister(running_nodes=running):
                raise CmlLicensingError("LicenceSeatNotReturned", "CML could not tell the licence server")
            return facts.licence_facts(self._cml)

    async def labs(self) -> Sequence[LabSummary]:
        async with self._verb("labs"):
            return [facts.lab_facts(self._cml, lab) for lab in self._cml.labs]

    async def find(self, title: str) -> LabSummary | None:
        async with self._verb("find"):
            return self._find(title)

    async def look(self, lab_id: str) -> LabSummary | None:
        async with self._verb("look"):
            lab = next((lab for lab in self._cml.labs if lab.id == lab_id), None)
            return facts.lab_facts(self._cml, lab) if lab else None

    async def ensure(self, title: str, topology: str) -> LabSummary:
        async with self._verb("ensure", CmlLabCreationError) as user:
            found = self._find(title)
            if found is None:
                permit()
                lab, _ = self._cml.import_lab(topology, user, title)
                found = facts.lab_facts(self._cml, lab)
            return found

    async def start(self, lab_id: str) -> None:
        async with self._verb("start", NoRoom):
            permit()
            self._cml.labs.start(self._lab(lab_id))

    async def converged(self, lab_id: str) -> bool:
        async with self._verb("converged"):
            return self._lab(lab_id).converged(self._cml.pace.age())

    async def stop(self, lab_id: str) -> None:
        async with self._verb("stop"):
            permit()
            self._cml.labs.stop(self._lab(lab_id))

    async def remove(self, lab_id: str) -> None:
        await until(
            lambda gone: gone,
            lambda: self._towards_the_end(lab_id),
            every_seconds=POLL_SECONDS,
            within_seconds=REMOVAL_SECONDS,
            late=lambda _: Later(f"the removal of lab {lab_id} takes long"),
        )

    async def elements(self, lab_id: str) -> Elements:
        async with self._verb("elements"):
            return Elements(**element_states(self._lab(lab_id), self._cml.pace.age()))

    async def nodes(self, lab_id: str) -> Sequence[NodeFacts]:
        async with self._verb("nodes"):
            age = self._cml.pace.age()
            nodes = self._lab(lab_id).nodes.values()
            return [facts.node_facts(node, age, facts.interface_facts(node, age)) for node in nodes]

    async def all_nodes(self) -> Mapping[str, Sequence[NodeFacts]]:
        async with self._verb("all_nodes"):
            age = self._cml.pace.age()
            labs = [lab for lab in self._cml.labs if lab.nodes]
            return {lab.id: [facts.node_facts(node, age) for node in lab.nodes.values()] for lab in labs}

    async def simulation_stats(self, lab_id: str) -> SimulationStats:
        async with self._verb("simulation_stats"):
            return facts.use_facts(self._cml, self._lab(lab_id))

    async def topology(self, lab_id: str) -> str:
        async with self._verb("topology"):
            lab = self._lab(lab_id)
            for node in lab.nodes.values():
                if node.life.state(self._cml.pace.age()) is State.BOOTED:
                    permit()
                    self._cml.labs.extract(node)
            self._cml.telemetry.record("export_lab", lab_id=lab.id)
            return download(lab)

    async def set_tags(self, lab_id: str, node_id: str, tags: Sequence[str]) -> None:
        async with self._verb("set_tags"):
            lab = self._lab(lab_id)
            wanted = _checked({"tags": list(tags)}, NodeUpdate)
            permit()
            self._cml.labs.change_node(lab, self._cml.labs.node(lab, node_id), wanted)

    async def pools(self) -> Sequence[PoolUse]:
        async with self._verb("pools"):
            return [facts.pool_facts(pool, self._cml.pool_usage(pool)) for pool in self._cml.pools.all.values()]

    async def activity(self, *, since: datetime) -> Sequence[Activity]:
        async with self._verb("activity"):
            news = self._cml.telemetry.after(since)
            return [Activity(category=event.category, at=at) for at, event in news]

    async def set_telemetry(self, *, enabled: bool) -> None:
        async with self._verb("set_telemetry"):
            permit()
            self._cml.telemetry.opt_in = enabled

    async def node_definitions(self) -> Sequence[NodeDefinition]:
        async with self._verb("node_definitions"):
            return [facts.definition_facts(kind) for kind in self._cml.labs.kinds.values()]

    async def close(self) -> None:
        await asyncio.sleep(0)

    def _verb(self, verb: str, refused: type[LcmError] = CmlApiError, *, sign_in: bool = True) -> "_Verb":
        """Surround a verb's effect with what can go wrong; `refused` is what CML's "no" means for it."""
        return _Verb(verb, refused, self._failures, self._signed_in if sign_in else self._anybody)

    def _anybody(self) -> User:
        self._cml.check_up()
        return self._cml.users.administrator

    def _signed_in(self) -> User:
        self._cml.check_up()
        try:
            user = self._cml.users.check(self._credentials)
        except Refusal as error:
            raise CmlAuthenticationError("CmlCredentialsRefused", str(error)) from error
        if not user.admin:
            raise CmlAuthenticationError("CmlUserNotAllowed", f"{user.username} is no administrator")
        return user

    def _lab(self, lab_id: str) -> Lab:
        return self._cml.labs.get(lab_id)

    def _find(self, title: str) -> LabSummary | None:
        named = [facts.lab_facts(self._cml, lab) for lab in self._cml.labs if lab.title == title]
        return min(named, key=lambda lab: (str(lab.created_at), lab.lab_id), default=None)

    async def _licence_until(self, done: Callable[[Licence], bool]) -> Licence:
        return await until(
            done, self.licence, every_seconds=POLL_SECONDS, within_seconds=LICENCE_SECONDS, late=_licence_is_late
        )

    async def _towards_the_end(self, lab_id: str) -> bool:
        """Take the next step that the lab's state allows; True when nothing is left."""
        labs = self._cml.labs
        try:
            async with self._verb("remove"):
                lab = self._lab(lab_id)
                permit()
                {State.STARTED: labs.stop, State.STOPPED: labs.wipe}.get(lab.state(self._cml.pace.age()), labs.delete)(
                    lab
                )
                return all(other.id != lab_id for other in labs)
        except Gone:
            return True
        except CmlApiError:
            return False


class _Verb:
    """What surrounds a verb's effect. No generator: there are more of these than of anything else that is awaited."""

    __slots__ = ("_failures", "_refused", "_sign_in", "_verb")

    def __init__(self, verb: str, refused: type[LcmError], failures: Failures, sign_in: Callable[[], User]) -> None:
        self._verb = verb
        self._refused = refused
        self._failures = failures
        self._sign_in = sign_in

    async def __aenter__(self) -> User:
        await asyncio.sleep(0)
        await self._failures.linger(self._verb)
        self._failures.before(self._verb)
        try:
            return self._sign_in()
        except (Down, Refusal) as error:
            raise self._meaning(error) from error

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, Down | Refusal):
            raise self._meaning(error) from error
        if error is None:
            await asyncio.sleep(0)
            self._failures.after(self._verb)

    def _meaning(self, error: Down | Refusal) -> LcmError:
        if isinstance(error, Down):
            return (NotReady if error.there else Unreachable)(str(error))
        return _meaning(error, self._refused)


def _checked(document: object, shape: type[T]) -> T:
    """Refuse what the REST face refuses."""
    try:
        return msgspec.convert(document, shape)
    except msgspec.ValidationError as error:
        raise bad(str(error)) from error


def _meaning(refusal: Refusal, refused: type[LcmError]) -> LcmError:
    meaning = _ALWAYS.get(refusal.status, refused)
    text = refusal.description
    return CmlLicensingError("CmlLicenceRefused", text) if meaning is CmlLicensingError else meaning(text)


def _licence_is_late(now: Licence) -> LcmError:
    if now.authorization == "OUT_OF_COMPLIANCE":
        return CmlLicensingError("LicenceOutOfCompliance", "no licence seat is free: free one or buy more")
    return Later(f"the licence takes long: CML says {now.registration} and {now.authorization}")
