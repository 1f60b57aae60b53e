"""Sign-in, system, telemetry and licensing on the simulator's REST face."""

from dataclasses import asdict
from typing import Annotated, Final

from msgspec import Meta

from lcm.sim.cml.faults import bad, forbidden, missing
from lcm.sim.cml.rest.documents import (
    Credentials,
    FeatureCount,
    MaintenanceUpdate,
    NoticeCreate,
    NoticeUpdate,
    OptIn,
    Registration,
    Transport,
)
from lcm.sim.cml.rest.routing import ADMIN, ANYBODY, DONE, Call, Json, Reply, Route, text
from lcm.sim.cml.stats import COMPUTE_ID, counts, health, system_stats

Product = Annotated[str, Meta(pattern=r"^\w{1,20}$")]

_SHORTEST_SESSION, _LONGEST_SESSION = 300, 604_800
_CONNECTOR_ID: Final = "00000000-0000-4000-c000-000000000000"


def authenticate(call: Call) -> str:
    """Sign in."""
    return str(_sign_in(call)["token"])


def auth_extended(call: Call) -> Json:
    """Sign in, and say as whom."""
    return _sign_in(call)


def authok(_call: Call) -> str:
    """Say that the token is good."""
    return "OK"


def authentication(call: Call) -> Json:
    """Say who is signed in, as later versions do."""
    user = call.user
    return {"id": user.id, "username": user.username, "admin": user.admin, "token": call.token, "error": None}


def logout(call: Call) -> bool:
    """Sign out here, or everywhere."""
    call.cml.users.sign_out(call.user, None if call.flag("clear_all_sessions") else call.token)
    return True


def auth_config(_call: Call) -> Json:
    """Say where passwords are kept."""
    return {"method": "local"}


def information(call: Call) -> Json:
    """Say version and readiness."""
    return {
        "version": call.cml.machine.version,
        "ready": True,
        "allow_ssh_pubkey_auth": False,
        "oui": "52:54:00:00:00:00",
    }


def show_health(call: Call) -> Json:
    """Say which parts are well."""
    licence = call.cml.licence
    report = health(call.cml.machine, call.cml.ailments)
    report |= {"is_licensed": licence.in_compliance, "is_enterprise": licence.product == "CML_Enterprise"}
    return report if call.user.admin else report | {"computes": {}}


def stats(call: Call) -> Json:
    """Say what the machine has and uses."""
    return system_stats(call.cml.machine, call.cml.labs.nodes(), call.age)


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
            "node_counts": counts(nodes, call.age),
            "is_connected": True,
            "is_synced": True,
        }
    ]


def host_configuration(_call: Call) -> Json:
    """Say what happens to new machines of the cluster."""
    return {"admission_state": "REGISTERED"}


def connectors(_call: Call) -> list[Json]:
    """List the ways out: one, in NAT mode."""
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


def maintenance(call: Call) -> Json:
    """Say whether CML is closed."""
    return call.cml.notices.status()


def change_maintenance(call: Call) -> Json:
    """Close or open CML."""
    call.cml.notices.set_maintenance(call.read(MaintenanceUpdate))
    return call.cml.notices.status()


def notices(call: Call) -> list[Json]:
    """List notices."""
    return [asdict(one) for one in call.cml.notices.all.values()]


def add_notice(call: Call) -> Json:
    """Add a notice."""
    return asdict(call.cml.notices.add(call.read(NoticeCreate)))


def notice(call: Call) -> Json:
    """Show a notice."""
    return asdict(call.cml.notices.get(call.params[0]))


def change_notice(call: Call) -> Json:
    """Change a notice."""
    found = call.cml.notices.get(call.params[0])
    return asdict(call.cml.notices.change(found, call.read(NoticeUpdate)))


def delete_notice(call: Call) -> Reply:
    """Remove a notice."""
    call.cml.notices.remove(call.cml.notices.get(call.params[0]))
    return DONE


def session_seconds(call: Call) -> int:
    """Say how long a token is good."""
    return call.cml.users.session_seconds


def change_session_seconds(call: Call) -> str:
    """Set how long new tokens are good."""
    seconds = int(call.params[0]) if call.params[0].isdecimal() else 0
    if not _SHORTEST_SESSION <= seconds <= _LONGEST_SESSION:
        raise bad("A web session lasts 300 to 604800 seconds.")
    call.cml.users.session_seconds = seconds
    return "OK"


def telemetry(call: Call) -> Json:
    """Say whether telemetry may be sent."""
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
        for at, one in call.cml.telemetry.past()
    ]


def diagnostics(call: Call) -> Json:
    """Say a little about a part of the system."""
    known = {"computes", "labs", "node_definitions", "user_list", "licensing", "services", "node_launch_queue"}
    if call.params[0] not in known | {"all", "lab_events", "startup_scheduler"}:
        raise missing("Diagnostics", call.params[0])
    return {"labs": len(call.cml.labs), "running_nodes": len(call.cml.active_nodes())}


def licence(call: Call) -> Json:
    """Show the licence."""
    return call.cml.licence.status()


def features(call: Call) -> list[Json]:
    """List what the product consists of."""
    return call.cml.licence.features()


def change_features(call: Call) -> Reply:
    """Set how many expansion nodes are used."""
    call.cml.licence.set_features(call.read(list[FeatureCount]))
    return DONE


def product(call: Call) -> Reply:
    """Choose the product."""
    call.cml.licence.set_product(call.read(Product))
    return DONE


def register(call: Call) -> Reply:
    """Accept a token."""
    call.cml.licence.register(call.read(Registration))
    return DONE


def renew(call: Call) -> Reply:
    """Ask the licence server again."""
    call.cml.licence.renew()
    return DONE


def deregister(call: Call) -> Reply:
    """Give the licence back."""
    told = call.cml.licence.deregister(running_nodes=len(call.cml.active_nodes()))
    return DONE if told else Reply(202)


def transport(call: Call) -> Reply:
    """Set the way to the licence server."""
    call.cml.licence.transport = call.read(Transport)
    return DONE


def tech_support(call: Call) -> Reply:
    """Say what support would ask."""
    return text(f"Registration: {call.cml.licence.registration()}\n", "text/plain")


def reservation(_call: Call) -> Reply:
    """Refuse reservations: they are not simulated."""
    raise bad("License reservation is not enabled.")


def _sign_in(call: Call) -> Json:
    user, token = call.cml.users.sign_in(call.read(Credentials))
    if call.cml.notices.maintenance and not user.admin:
        raise forbidden("The system is in maintenance mode.")
    return {"username": user.username, "id": user.id, "token": token, "admin": user.admin, "error": None}


ROUTES: Final = (
    Route("POST", "authenticate", authenticate, ANYBODY),
    Route("POST", "auth_extended", auth_extended, ANYBODY),
    Route("GET", "authok", authok),
    Route("GET", "authentication", authentication),
    Route("DELETE", "logout", logout),
    Route("GET", "system/auth/config", auth_config, ADMIN),
    Route("GET", "system_information", information, ANYBODY),
    Route("GET", "system_health", show_health),
    Route("GET", "system_stats", stats),
    Route("GET", "system/compute_hosts", compute_hosts, ADMIN),
    Route("GET", "system/compute_hosts/configuration", host_configuration, ADMIN),
    Route("GET", "system/external_connectors", connectors),
    Route("GET", "system/maintenance_mode", maintenance, ANYBODY),
    Route("PATCH", "system/maintenance_mode", change_maintenance, ADMIN),
    Route("GET", "system/notices", notices),
    Route("POST", "system/notices", add_notice, ADMIN),
    Route("GET", "system/notices/{}", notice),
    Route("PATCH", "system/notices/{}", change_notice, ADMIN),
    Route("DELETE", "system/notices/{}", delete_notice, ADMIN),
    Route("GET", "web_session_timeout", session_seconds, ADMIN),
    Route("PATCH", "web_session_timeout/{}", change_session_seconds, ADMIN),
    Route("GET", "telemetry", telemetry),
    Route("PUT", "telemetry", change_telemetry, ADMIN),
    Route("GET", "telemetry/events", telemetry_events, ADMIN),
    Route("GET", "diagnostics/{}", diagnostics, ADMIN),
    Route("GET", "licensing", licence, ADMIN),
    Route("GET", "licensing/features", features, ADMIN),
    Route("PATCH", "licensing/features", change_features, ADMIN),
    Route("PUT", "licensing/product_license", product, ADMIN),
    Route("POST", "licensing/registration", register, ADMIN),
    Route("PUT", "licensing/registration/renew", renew, ADMIN),
    Route("PUT", "licensing/authorization/renew", renew, ADMIN),
    Route("DELETE", "licensing/deregistration", deregister, ADMIN),
    Route("PUT", "licensing/transport", transport, ADMIN),
    Route("GET", "licensing/tech_support", tech_support, ADMIN),
    Route("PUT", "licensing/reservation/{}", reservation, ADMIN),
    Route("POST", "licensing/reservation/{}", reservation, ADMIN),
    Route("GET", "licensing/reservation/{}", reservation, ADMIN),
    Route("DELETE", "licensing/reservation/{}", reservation, ADMIN),
)
