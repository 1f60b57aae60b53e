"""What the CML client makes of a licence that is refused, lost on the way, or given back."""

from collections.abc import AsyncIterator

import pytest

from harness.http_answers import AnswerServer, Say, refusal, says
from harness.lab_hosts import LICENCE, REGISTERED, TOKEN, host_of, served
from lcm.model.base.errors import Later, Unreachable
from lcm.providers.cml.host import CmlHost
from lcm.providers.protocols.labhost import CmlLicensingError


@pytest.fixture
async def server() -> AsyncIterator[AnswerServer]:
    async with served() as server:
        yield server


@pytest.fixture
async def host(server: AnswerServer) -> AsyncIterator[CmlHost]:
    async with host_of(server.url) as host:
        yield host


async def test_a_licence_given_back_only_locally_needs_a_person(server: AnswerServer, host: CmlHost) -> None:
    server.tell("licensing", says(REGISTERED), says(LICENCE))
    server.tell("licensing/deregistration", Say(202))
    with pytest.raises(CmlLicensingError, match="seat"):
        await host.deregister()
    assert not (await host.deregister()).is_registered


@pytest.mark.parametrize("lost", [Say(500), Say(502), Say(202, b"{}", cut=1), Say(hang=True)])
async def test_a_deregistration_whose_answer_was_lost_may_have_left_a_seat_taken(
    server: AnswerServer, lost: Say
) -> None:
    server.tell("licensing", says(REGISTERED), says(LICENCE))
    server.tell("licensing/deregistration", lost)
    async with host_of(server.url, effect_seconds=0.3) as host:
        with pytest.raises(CmlLicensingError, match="licence server") as raised:
            await host.deregister()
        assert raised.value.reason == "LicenceSeatUnknown"
        assert not (await host.deregister()).is_registered


async def test_a_deregistration_that_did_not_happen_is_tried_again(server: AnswerServer, host: CmlHost) -> None:
    server.tell("licensing", says(REGISTERED), says(REGISTERED), says(REGISTERED), says(LICENCE))
    server.tell("licensing/deregistration", Say(500), Say(204))
    with pytest.raises(Unreachable):
        await host.deregister()
    assert not (await host.deregister()).is_registered


async def test_a_deregistration_that_somebody_else_did_is_done(server: AnswerServer, host: CmlHost) -> None:
    server.tell("licensing", says(REGISTERED), says(LICENCE))
    server.tell("licensing/deregistration", refusal(400, "The product has already been deregistered."))
    assert not (await host.deregister()).is_registered


async def test_a_registration_that_failed_holds_no_seat_to_give_back(server: AnswerServer, host: CmlHost) -> None:
    server.tell("licensing", says(LICENCE | {"registration": {"status": "FAILED"}}))
    server.tell("licensing/deregistration", refusal(400, "The product has already been deregistered."))
    assert not (await host.deregister()).is_registered


REAL_TOKEN = "MzA5ZTRlMjktOTQ3MC00YjVkLTg5YTYtMTc2NzE4Y2I1%0AMWVhfGx2" + "YXdIc09HTnV6Zk%3D%0A"


@pytest.mark.parametrize(
    ("failure", "shown"),
    [
        (f"The token '{REAL_TOKEN}' is not valid.", "The token *** is not valid."),
        (f"The token {REAL_TOKEN} has expired.", "The token *** has expired."),
        (f"Couldn't register: token '{REAL_TOKEN}' has expired", "Couldn't register: token *** has expired"),
        ("Couldn't register: token 'short' has expired", "Couldn't register: token *** has expired"),
        (f"token={REAL_TOKEN}", "***"),
        ("Fail to send out Call Home HTTP message.", "Fail to send out Call Home HTTP message."),
        ("Communication message send error", "Communication message send error"),
        ("OK", ""),
    ],
)
async def test_why_a_registration_failed_is_told_without_its_token(
    server: AnswerServer, host: CmlHost, failure: str, shown: str
) -> None:
    failed = {"status": "FAILED", "register_time": {"attempted": None, "failure": failure}}
    server.tell("licensing", says(LICENCE | {"registration": failed}))
    assert (await host.licence()).failure == shown


async def test_a_token_is_hidden_before_a_long_refusal_is_cut(server: AnswerServer, host: CmlHost) -> None:
    half = 500 - len(TOKEN.reveal()) // 2
    server.tell("licensing/registration", refusal(400, "x" * half + TOKEN.reveal()))
    with pytest.raises(CmlLicensingError) as raised:
        await host.register(product="CML_Enterprise", token=TOKEN)
    assert "licen" not in str(raised.value).rpartition("x")[2]


async def test_a_licence_that_stays_out_of_compliance_needs_a_person(server: AnswerServer, host: CmlHost) -> None:
    server.tell("licensing", says(REGISTERED | {"authorization": {"status": "OUT_OF_COMPLIANCE"}}))
    with pytest.raises(CmlLicensingError, match="seat"):
        await host.register(product="CML_Enterprise", token=TOKEN)
    server.tell("licensing", says(REGISTERED | {"authorization": {"status": "EVAL"}}))
    with pytest.raises(Later, match="EVAL"):
        await host.register(product="CML_Enterprise", token=TOKEN)


async def test_expansion_nodes_are_asked_only_of_a_product_that_has_them(server: AnswerServer, host: CmlHost) -> None:
    server.tell("licensing", says(REGISTERED))
    with pytest.raises(CmlLicensingError, match="expansion"):
        await host.register(product="CML_Enterprise", token=TOKEN, expansion_nodes=50)
