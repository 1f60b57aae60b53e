"""Licence seats over HTTP: who has one, and a person's word that one left behind is free again."""

from typing import Final

from lcm.api.answers import NOTHING, Answer, value
from lcm.api.http import Request
from lcm.api.routes import DELETE, GET, WATCHMEN, Policy, Route
from lcm.model.identity import STAFF
from lcm.model.licence import LicenceLedger


async def _list(request: Request) -> Answer:
    return value(await request.plane.licences())


async def _free(request: Request) -> Answer:
    await request.writing.free_licence(request.params[0])
    return NOTHING


ROUTES: Final[tuple[Route, ...]] = (
    Route(
        GET,
        "/api/licenses",
        _list,
        "listLicenses",
        "List tokens and the workers that have their seats",
        policy=WATCHMEN,
        answer=LicenceLedger,
    ),
    Route(
        DELETE,
        "/api/licenses/{id}",
        _free,
        "freeLicense",
        "Take note that the seat which a worker of this uid left behind was freed at the licence server",
        policy=Policy(STAFF),
        status=204,
    ),
)
