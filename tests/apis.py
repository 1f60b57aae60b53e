"""An API over a store in memory, with somebody of every role at the other end of it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import httpx
import msgspec

from lcm.api.http.app import Api
from lcm.api.http.limits import ApiLimits
from lcm.api.http.routing import Route
from lcm.api.openapi.examples import ANSWERS, DOCUMENTS
from lcm.api.routes.plan_shapes import PlanBaseline, PlanJob, Planner, PlanWish
from lcm.api.routes.table import ROUTES
from lcm.control.access.oidc import Verifier
from lcm.control.access.tokens import Tokens
from lcm.control.delivery.sinks import SinkSettings
from lcm.control.plane.local import ControlPlane
from lcm.model.access.identity import Caller, Role
from lcm.model.access.secret import Secret
from lcm.model.base.clock import Clock
from lcm.model.base.errors import Gone
from lcm.model.kinds.registry import KINDS
from lcm.sim.time.asgi import AsgiTransport
from lcm.store.base import Store
from lcm.store.memory import MemoryStore
from lcm.system.clock import new_id
from planes import CAST, LIMITS, hand_clock
from seals import given_keys

KEY = "the-service-key-of-a-test"
ROLES = {**{name: role for name, role in CAST.items() if name != "bob"}, "service": Role.SERVICE}
"""One of each role, by name."""
ROOT = Caller(name="root", role=Role.ADMIN)
OWNED = ("LabletSession", "Reservation")


class OnePlan:
    """Has made one plan, the one of the examples, and begins no other."""

    def __init__(self) -> None:
        self._job: PlanJob = msgspec.convert(ANSWERS["PlanJob"], PlanJob)

    async def begin(self, wish: PlanWish, by: str, standing: PlanBaseline | None = None) -> PlanJob:
        assert (standing is not None) == wish.from_now, "what there is comes with whoever asks for it"
        return msgspec.structs.replace(self._job, by=by, progress=1 / len(wish.timetable.sessions))

    def find(self, name: str) -> PlanJob:
        if name != self._job.id:
            raise Gone(f"there is no plan {name}")
        return self._job

    def report(self, name: str) -> str:
        return f"<!doctype html>{self.find(name).id}"

    async def cancel(self, name: str) -> None:
        self.find(name)


class Desk:
    """Asks the API as whoever is named; nobody is named "" and a service "service"."""

    def __init__(
        self,
        *,
        store: Store,
        clock: Clock,
        limits: ApiLimits,
        routes: Sequence[Route],
        ids: Any = new_id,
        house: SinkSettings | None = None,
        verifier: Verifier | None = None,
        plans: Planner | None = None,
    ) -> None:
        self.store = store
        self.core = ControlPlane(store, clock=clock, ids=ids, sealer=given_keys())
        self.tokens = Tokens(store, clock=clock, service_key=Secret(KEY))
        self.api = Api(
            self.core,
            self.tokens,
            clock=clock,
            limits=limits,
            routes=routes,
            house=house,
            verifier=verifier,
            plans=plans or OnePlan(),
        )
        self.secrets = {"service": KEY}
        self._client = httpx.AsyncClient(transport=AsgiTransport(self.api), base_url="http://desk")

    async def ask(self, who: str, method: str, path: str, **request: Any) -> httpx.Response:
        """Send a request; `json`, `content`, `params` and `headers` are httpx's."""
        headers = {**self.signed(who), **request.pop("headers", {})}
        return await self._client.request(method, path, headers=headers, **request)

    def streamed(self, who: str, path: str, **request: Any) -> AbstractAsyncContextManager[httpx.Response]:
        """Begin to read an answer that goes on."""
        headers = {**self.signed(who), **request.pop("headers", {})}
        return self._client.stream("GET", path, headers=headers, **request)

    async def done(self, who: str, method: str, path: str, **request: Any) -> Any:
        """Send a request that must succeed, and give its answer."""
        answer = await self.ask(who, method, path, **request)
        assert answer.is_success, (method, path, answer.status_code, answer.text)
        return answer.json() if answer.content else None

    def signed(self, who: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.secrets[who]}"} if who else {}

    async def start(self) -> None:
        await self.tokens.start()
        self._following = asyncio.create_task(self.api.run())
        for name, role in CAST.items():
            self.secrets[name] = (await self.tokens.make(name, role))[0].reveal()

    async def close(self) -> None:
        await self._client.aclose()
        self._following.cancel()
        await asyncio.wait([self._following])
        await self.tokens.close()
        await self.store.close()

    async def revision(self) -> int:
        return (await self.store.scan("", limit=1)).revision


@asynccontextmanager
async def opened(
    *,
    store: Store | None = None,
    clock: Clock | None = None,
    limits: ApiLimits = LIMITS,
    routes: Sequence[Route] = ROUTES,
    ids: Any = new_id,
    house: SinkSettings | None = None,
    verifier: Verifier | None = None,
    plans: Planner | None = None,
) -> AsyncIterator[Desk]:
    """Open a desk with no objects behind it."""
    given = store or MemoryStore()
    desk = Desk(
        store=given,
        clock=clock or hand_clock(),
        limits=limits,
        routes=routes,
        ids=ids,
        house=house,
        verifier=verifier,
        plans=plans,
    )
    await desk.start()
    try:
        yield desk
    finally:
        await desk.close()


def document(kind: str, *, name: str | None = None, **spec: Any) -> dict[str, Any]:
    """Give the example of a kind, under another name, or with other things in its spec."""
    example = DOCUMENTS[kind]
    metadata = example["metadata"] | ({"name": name} if name else {})
    return {**example, "metadata": metadata, "spec": example["spec"] | spec}


async def stock(desk: Desk, *, owner: str = "root") -> None:
    """Make the example of every kind; bookings belong to the owner."""
    written = [document(kind, **({"owner": owner} if kind in OWNED else {})) for kind in DOCUMENTS]
    await desk.core.plane_for(ROOT).apply(written)


def path(kind: str, name: str | None = None) -> str:
    """Say where a kind, or an object of it, is served."""
    return f"/api/{KINDS[kind].plural}" + (f"/{name}" if name else "")


def name_of(kind: str) -> str:
    """Say what the example of a kind is called."""
    return str(DOCUMENTS[kind]["metadata"]["name"])
