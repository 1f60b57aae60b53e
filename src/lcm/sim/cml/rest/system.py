"""Sign-in, system, telemetry and licensing on the simulator's REST interface."""

from dataclasses import asdict
from typing import Annotated, Final

from msgspec import Meta

from lcm.model.base.resource import END
from lcm.sim.cml.faults import bad_request, forbidden, not_found
from lcm.sim.cml.rest.documents import (
    Credentials,
    FeatureCount,
    Json,
    LicenceTransport,
    MaintenanceUpdate,
    NoticeCreate,
    NoticeUpdate,
    OptIn,
    Registration,
)
from lcm.sim.cml.rest.routing import ADMIN, ANYBODY, DONE, Call, CmlRoute, Reply, text_reply
from lcm.sim.cml.stats import COMPUTE_ID, health_report, node_counts, system_stats

Product = Annotated[str, Meta(pattern=r"^\w{1,20}" + END)]

_SHORTEST_SESSION, _LONGEST_SESSION = 300, 604_800
_CONNECTOR_ID: Final = "00000000-0000-4000-c000-000000000000"


def authentication(call: Call) -> Json:
    """Return who is signed in, as later versions do."""
    user = call.user
    return {"id": user.id, "username": user.username, "admin": user.admin, "token": call.token, "error": None}


def logout(call: Call) -> bool:
    """Sign out here, or everywhere."""
    call.cml.users.sign_out(call.user, None if call.flag("clear_all_sessions") else call.token)
    return True


def information(call: Call) -> Json:
    """Return version and readiness."""
    return {
        "version": call.cml.machine.version,
        "ready": True,
        "allow_ssh_pubkey_auth": False,
        "oui": "52:54:00:00:00:00",
    }


def show_health(call: Call) -> Json:
    """Return which checks pass."""
    licence = call.cml.licence
    report = health_report(call.cml.machine, call.cml.ailments)
    report |= {"is_licensed": licence.in_compliance, "is_enterprise": licence.product == "CML_Enterprise"}
    return report if call.user.admin else report | {"computes": {}}


def compute_hosts(call: Call) -> list[Json]:
    """List the machines of the cluster: one."""
    nodes = list(call.cml.labs.nodes())
    return [
        {
            "id": COMPUTE_ID,
            "server_address": "127.0.0.1",
            "hostname": call.cml.machine.hostname,
            "is_simulator": True,
            "is_connector": True,
            "admission_state": "READY",
            "nodes": [node.id for node in nodes],
            "node_counts": node_counts(nodes, call.age),
            "is_connected": True,
            "is_synced": True,
        }
    ]


def connectors(_call: Call) -> list[Json]:
    """List the external connectors: one, in NAT mode."""
    operational = {
        "label": "NAT",
        "interface": None,
        "forwarding": "NAT",
        "mtu": 1500,
        "exists": True,
        "enabled": True,
        "stp": False,
        "ip_networks": ["192.168.255.1/24"],
    }
    connector = {"id": _CONNECTOR_ID, "label": "NAT", "device_name": "virbr0", "tags": ["NAT"], "allowed": True}
    return [connector | {"snooped": True, "protected": False, "operational": operational}]


def change_maintenance(call: Call) -> Json:
    """Enter or leave maintenance mode."""
    call.cml.notices.set_maintenance(call.read(MaintenanceUpdate))
    return call.cml.notices.status()


def change_notice(call: Call) -> Json:
    """Change a notice."""
    found = call.cml.notices.get(call.params[0])
    return asdict(call.cml.notices.change(found, call.read(NoticeUpdate)))


def change_session_seconds(call: Call) -> str:
    """Set how long new tokens are valid."""
    seconds = int(call.params[0]) if call.params[0].isdecimal() else 0
    if not _SHORTEST_SESSION <= seconds <= _LONGEST_SESSION:
        raise bad_request("A web session lasts 300 to 604800 seconds.")
    call.cml.users.session_seconds = seconds
    return "OK"


def telemetry(call: Call) -> Json:
    """Return whether telemetry may be sent."""
    return {"opt_in": call.cml.telemetry.opt_in, "show_modal": False}


def change_telemetry(call: Call) -> Json:
    """Set whether telemetry may be sent."""
    call.cml.telemetry.opt_in = call.read(OptIn).opt_in
    return telemetry(call)


def telemetry_events(call: Call) -> list[Json]:
    """List what happened."""
    return [
        {
            "category": one.category,
            "timestamp": at.isoformat(),
            "data": one.data | {key: ref for key, ref in (("lab_id", one.lab_id), ("node_id", one.node_id)) if ref},
        }
        for at, one in call.cml.telemetry.past_events()
    ]


def diagnostics(call: Call) -> Json:
    """Return a little about a part of the system."""
    known = {"computes", "labs", "node_definitions", "user_list", "licensing", "services", "node_launch_queue"}
    if call.params[0] not in known | {"all", "lab_events", "startup_scheduler"}:
        raise not_found("Diagnostics", call.params[0])
    return {"labs": len(call.cml.labs), "running_nodes": len(call.cml.active_nodes())}


def deregister(call: Call) -> Reply:
    """Return the licence."""
    done = call.cml.licence.deregister(running_nodes=len(call.cml.active_nodes()))
    return DONE if done else Reply(202)


def transport(call: Call) -> None:
    """Set how the licence server is reached."""
    call.cml.licence.transport = call.read(LicenceTransport)


def tech_support(call: Call) -> Reply:
    """Return what support would ask for."""
    return text_reply(f"Registration: {call.cml.licence.registration()}\n", "text/plain")


def reservation(_call: Call) -> None:
    """Refuse reservations: they are not simulated."""
    raise bad_request("License reservation is not enabled.")


def _sign_in(call: Call) -> Json:
    """Sign in, and return the user."""
    user, token = call.cml.users.sign_in(call.read(Credentials))
    if call.cml.notices.maintenance and not user.admin:
        raise forbidden("The system is in maintenance mode.")
    return {"username": user.username, "id": user.id, "token": token, "admin": user.admin, "error": None}


ROUTES: Final = (
    CmlRoute("POST", "authenticate", lambda call: _sign_in(call)["token"], ANYBODY),
    CmlRoute("POST", "auth_extended", _sign_in, ANYBODY),
    CmlRoute("GET", "authok", lambda _: "OK"),
    CmlRoute("GET", "authentication", authentication),
    CmlRoute("DELETE", "logout", logout),
    CmlRoute("GET", "system/auth/config", lambda _: {"method": "local"}, ADMIN),
    CmlRoute("GET", "system_information", information, ANYBODY),
    CmlRoute("GET", "system_health", show_health),
    CmlRoute("GET", "system_stats", lambda call: system_stats(call.cml.machine, call.cml.labs.nodes(), call.age)),
    CmlRoute("GET", "system/compute_hosts", compute_hosts, ADMIN),
    CmlRoute("GET", "system/compute_hosts/configuration", lambda _: {"admission_state": "REGISTERED"}, ADMIN),
    CmlRoute("GET", "system/external_connectors", connectors),
    CmlRoute("GET", "system/maintenance_mode", lambda call: call.cml.notices.status(), ANYBODY),
    CmlRoute("PATCH", "system/maintenance_mode", change_maintenance, ADMIN),
    CmlRoute("GET", "system/notices", lambda call: [asdict(one) for one in call.cml.notices.all.values()]),
    CmlRoute("POST", "system/notices", lambda call: asdict(call.cml.notices.add(call.read(NoticeCreate))), ADMIN),
    CmlRoute("GET", "system/notices/{}", lambda call: asdict(call.cml.notices.get(call.params[0]))),
    CmlRoute("PATCH", "system/notices/{}", change_notice, ADMIN),
    CmlRoute(
        "DELETE", "system/notices/{}", lambda call: call.cml.notices.remove(call.cml.notices.get(call.params[0])), ADMIN
    ),
    CmlRoute("GET", "web_session_timeout", lambda call: call.cml.users.session_seconds, ADMIN),
    CmlRoute("PATCH", "web_session_timeout/{}", change_session_seconds, ADMIN),
    CmlRoute("GET", "telemetry", telemetry),
    CmlRoute("PUT", "telemetry", change_telemetry, ADMIN),
    CmlRoute("GET", "telemetry/events", telemetry_events, ADMIN),
    CmlRoute("GET", "diagnostics/{}", diagnostics, ADMIN),
    CmlRoute("GET", "licensing", lambda call: call.cml.licence.status(), ADMIN),
    CmlRoute("GET", "licensing/features", lambda call: call.cml.licence.features(), ADMIN),
    CmlRoute(
        "PATCH", "licensing/features", lambda call: call.cml.licence.set_features(call.read(list[FeatureCount])), ADMIN
    ),
    CmlRoute("PUT", "licensing/product_license", lambda call: call.cml.licence.set_product(call.read(Product)), ADMIN),
    CmlRoute("POST", "licensing/registration", lambda call: call.cml.licence.register(call.read(Registration)), ADMIN),
    CmlRoute("PUT", "licensing/registration/renew", lambda call: call.cml.licence.renew(), ADMIN),
    CmlRoute("PUT", "licensing/authorization/renew", lambda call: call.cml.licence.renew(), ADMIN),
    CmlRoute("DELETE", "licensing/deregistration", deregister, ADMIN),
    CmlRoute("PUT", "licensing/transport", transport, ADMIN),
    CmlRoute("GET", "licensing/tech_support", tech_support, ADMIN),
    CmlRoute("PUT", "licensing/reservation/{}", reservation, ADMIN),
    CmlRoute("POST", "licensing/reservation/{}", reservation, ADMIN),
    CmlRoute("GET", "licensing/reservation/{}", reservation, ADMIN),
    CmlRoute("DELETE", "licensing/reservation/{}", reservation, ADMIN),
)
