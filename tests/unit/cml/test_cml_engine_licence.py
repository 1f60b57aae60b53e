"""The simulated CML's licence, and the server that several machines share."""

from collections.abc import Callable

import pytest

from harness.clouds import LONG, Bench, node, text
from lcm.sim.cml.faults import CmlRefusal
from lcm.sim.cml.licence import BASE, EXPANSION, LicenceServer, Licensing
from lcm.sim.cml.rest.documents import FeatureCount, LicenceTransport, Registration

GOOD, BAD = Registration("a-good-token"), Registration("bad-token")


def refuses(status: int, verb: Callable[[], object]) -> None:
    with pytest.raises(CmlRefusal) as raised:
        verb()
    assert raised.value.status == status


def words(licence: Licensing) -> tuple[str, str]:
    return licence.registration(), licence.authorization()


def registered(**options: object) -> Bench:
    bench = Bench(**options)
    bench.cml.licence.register(GOOD)
    bench.wait(60)
    return bench


def test_a_registration_is_accepted_first_and_completed_later() -> None:
    bench = Bench()
    licence = bench.cml.licence
    assert words(licence) == ("NOT_REGISTERED", "INIT")
    licence.register(GOOD)
    seen = []
    for _ in range(20):
        seen.append(words(licence))
        bench.wait(1)
    assert list(dict.fromkeys(seen)) == [
        ("IN_PROGRESS", "EVAL"),
        ("COMPLETED", "EVAL"),
        ("COMPLETED", "IN_COMPLIANCE"),
    ]
    assert licence.node_limit == 20


def test_a_bad_token_is_accepted_and_fails_later() -> None:
    bench = Bench()
    licence = bench.cml.licence
    licence.register(BAD)
    assert (licence.registration(), licence.failure()) == ("IN_PROGRESS", "")
    bench.wait(60)
    assert words(licence) == ("FAILED", "EVAL")
    assert licence.status()["registration"]["register_time"]["failure"] == "The token 'bad-token' is not valid."
    assert "bad-token" not in licence.failure(hidden=True)
    assert licence.node_limit == 5
    licence.register(GOOD)
    bench.wait(60)
    assert licence.in_compliance


def test_who_is_registered_registers_again_only_on_purpose() -> None:
    bench = registered()
    refuses(409, lambda: bench.cml.licence.register(GOOD))
    bench.cml.licence.register(Registration("a-good-token", reregister=True))
    bench.wait(60)
    assert bench.cml.licence.in_compliance


def test_a_licence_is_not_given_back_while_nodes_run() -> None:
    bench = registered()
    lab = bench.booted()
    running = len(bench.cml.active_nodes())
    refuses(409, lambda: bench.cml.licence.deregister(running_nodes=running))
    bench.cml.labs.stop(lab)
    bench.wait(5)
    assert bench.cml.licence.deregister(running_nodes=len(bench.cml.active_nodes()))
    assert words(bench.cml.licence) == ("NOT_REGISTERED", "INIT")
    refuses(400, lambda: bench.cml.licence.deregister(running_nodes=0))


def test_a_seat_stays_taken_when_the_server_could_not_be_told() -> None:
    server = LicenceServer(seats=1)
    first, second = registered(licence_server=server), registered(licence_server=server, seed=2)
    assert words(second.cml.licence) == ("COMPLETED", "OUT_OF_COMPLIANCE")
    server.reachable = False
    assert not first.cml.licence.deregister(running_nodes=0)
    server.reachable = True
    second.cml.licence.renew()
    assert not second.cml.licence.in_compliance
    server.taken.clear()
    second.cml.licence.renew()
    assert second.cml.licence.in_compliance
    assert list(server.taken.values()) == ["CML_Enterprise"]


def test_a_server_out_of_reach_is_tried_again_and_again() -> None:
    bench = registered(licence_server=LicenceServer(reachable=False))
    assert words(bench.cml.licence) == ("RETRY_IN_PROGRESS", "EVAL")
    assert "Call Home" in bench.cml.licence.failure()
    refuses(400, bench.cml.licence.renew)


def test_a_product_is_chosen_once_and_must_be_known() -> None:
    bench = registered()
    licence = bench.cml.licence
    refuses(400, lambda: licence.set_product("CML_Enterprise"))
    refuses(400, lambda: licence.set_product("CML_Unheard"))
    licence.set_product("CML_Personal40")
    assert (licence.node_limit, licence.status()["product_license"]["is_enterprise"]) == (40, False)
    assert list(bench.cml.licence_server.taken.values()) == ["CML_Personal40"]


def test_expansion_nodes_raise_the_limit_all_or_nothing() -> None:
    bench = registered(licence_server=LicenceServer(expansion_nodes=100))
    licence = bench.cml.licence
    licence.set_features([FeatureCount(EXPANSION, 100), FeatureCount(BASE, 1)])
    assert licence.node_limit == 120
    for wanted in ([FeatureCount(EXPANSION, 101)], [FeatureCount("unknown", 1)], [], [FeatureCount(EXPANSION, 1)] * 3):
        refuses(400, lambda wanted=wanted: licence.set_features(wanted))  # type: ignore[misc]
    refuses(400, lambda: licence.set_features([FeatureCount(EXPANSION, 1), FeatureCount(BASE, 9)]))
    assert licence.node_limit == 120
    bench.started(text(*(node(f"H{n}", "server") for n in range(120))))


def test_a_personal_licence_takes_no_expansion() -> None:
    bench = Bench()
    bench.cml.licence.set_product("CML_Personal")
    refuses(400, lambda: bench.cml.licence.set_features([FeatureCount(EXPANSION, 1)]))


def test_the_status_has_the_shape_of_the_real_one() -> None:
    status = registered().cml.licence.status()
    times = {"succeeded", "attempted", "scheduled", "status", "failure", "success"}
    assert status["registration"]["register_time"].keys() == times
    assert status["authorization"]["renew_time"].keys() == times
    assert status["registration"]["register_time"]["attempted"] == "2026-03-29 01:00:00"
    assert status["transport"]["ssms"] == status["transport"]["default_ssms"]
    assert {one["status"] for one in status["features"]} == {"IN_COMPLIANCE", "INIT"}


def test_another_way_to_the_server_is_shown() -> None:
    bench = Bench()
    bench.cml.licence.transport = LicenceTransport(ssms="https://satellite")
    assert bench.cml.licence.status()["transport"]["ssms"] == "https://satellite"


def test_a_licence_survives_a_restart() -> None:
    bench = registered()
    bench.cml.restart()
    bench.wait(LONG)
    assert bench.cml.licence.in_compliance
