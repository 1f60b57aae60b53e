"""The simulated CML's figures: the machine, running nodes, addresses, resource pools, users."""

import itertools
from typing import Any

import pytest

from harness.clouds import LONG, Bench, link, node, one, text
from lcm.model.topology.node_definitions import shipped_nodes
from lcm.sim.cml.faults import CmlFull, CmlRefusal
from lcm.sim.cml.labs import QUEUE_SECONDS
from lcm.sim.cml.rest.documents import (
    Association,
    Associations,
    Credentials,
    GroupCreate,
    GroupUpdate,
    PasswordChange,
    PoolCreate,
    PoolUpdate,
    UserCreate,
    UserUpdate,
)
from lcm.sim.cml.stats import CmlMachine, layer3_addresses, node_load, simulation_stats, system_stats


def machine_stats(bench: Bench) -> dict[str, Any]:
    return system_stats(bench.cml.machine, bench.cml.labs.nodes(), bench.cml.pace.age())


def test_the_machine_shows_what_running_nodes_were_given() -> None:
    bench = Bench(machine=CmlMachine(cpu_count=8, memory_mb=16_384, disk_gb=100))
    idle = machine_stats(bench)["all"]
    lab = bench.booted(text(node("a", "csr1000v"), node("b", "alpine", cpus=2, ram=1000)))
    (compute,) = machine_stats(bench)["computes"].values()
    domains, used = compute["stats"]["dominfo"], compute["stats"]
    assert (domains["running_nodes"], domains["total_nodes"]) == (2, 2)
    assert domains["allocated_cpus"] == shipped_nodes()["csr1000v"].cpus + 2
    assert domains["allocated_memory"] == (shipped_nodes()["csr1000v"].ram_mb + 1000) * 1024
    assert used["cpu"]["count"] == 8
    assert idle["cpu"]["percent"] < used["cpu"]["percent"] <= 100
    assert idle["memory"]["used"] < used["memory"]["used"] < used["memory"]["total"] == 16_384 * 1024 * 1024
    bench.cml.labs.stop(lab)
    bench.wait(5)
    (compute,) = machine_stats(bench)["computes"].values()
    assert (compute["stats"]["dominfo"]["running_nodes"], compute["stats"]["dominfo"]["total_nodes"]) == (0, 2)
    assert machine_stats(bench)["all"]["memory"]["used"] == idle["memory"]["used"]


def test_more_nodes_than_memory_never_show_more_than_there_is() -> None:
    bench = Bench(machine=CmlMachine(cpu_count=1, memory_mb=4096))
    bench.started(text(*(node(f"N{n}", "nxosv9000") for n in range(5))))
    bench.wait(30)
    whole = machine_stats(bench)["all"]
    assert whole["memory"]["free"] >= 0
    assert whole["cpu"]["percent"] == 100


def test_a_node_is_busy_while_it_boots_and_quiet_afterwards() -> None:
    bench = Bench()
    lab = bench.started()
    bench.wait(20)
    booting = node_load(one(lab, "R1"), bench.cml.pace.age())
    bench.wait(LONG)
    age = bench.cml.pace.age()
    assert booting.cpu_percent > 60 > node_load(one(lab, "R1"), age).cpu_percent
    assert node_load(one(lab, "R1"), age) == node_load(one(lab, "R1"), age)


def test_times_tell_how_long_it_queued_and_since_when_it_runs() -> None:
    bench = Bench()
    lab = bench.started()
    bench.wait(1)
    only = one(lab, "R1")
    assert simulation_stats(lab, bench.cml.pace)["nodes"][only.id] == {
        "times": {"QUEUED": 1, "STARTED": 0, "BOOTED": 0}
    }
    bench.wait(LONG - 1)
    use = simulation_stats(lab, bench.cml.pace)["nodes"][only.id]
    times = use["times"]
    assert times["QUEUED"] == pytest.approx(QUEUE_SECONDS, abs=1)
    assert times["STARTED"] == pytest.approx(LONG - QUEUE_SECONDS, abs=1)
    assert 60 < times["STARTED"] - times["BOOTED"] < 150
    assert (use["cpus"], use["ram"], use["cpu_limit"]) == (1, 512, 100)
    bench.cml.labs.stop(lab)
    bench.wait(5)
    assert simulation_stats(lab, bench.cml.pace) == {"nodes": {}, "links": {}}


def test_a_fast_machine_counts_the_clocks_seconds() -> None:
    bench = Bench(speed=100)
    lab = bench.started()
    bench.wait(50)
    times = simulation_stats(lab, bench.cml.pace)["nodes"][one(lab, "R1").id]["times"]
    assert times["STARTED"] == 50


def test_links_count_while_both_ends_run() -> None:
    bench = Bench()
    lab = bench.booted(text(node("a"), node("b"), links=[link("a/i0", "b/i0")]))
    (before,) = simulation_stats(lab, bench.cml.pace)["links"].values()
    bench.wait(60)
    (after,) = simulation_stats(lab, bench.cml.pace)["links"].values()
    assert after["readbytes"] > before["readbytes"] > 0


def test_addresses_are_those_of_booted_nodes_behind_nat_and_differ() -> None:
    bench = Bench()
    topology = text(
        node("a", "alpine"),
        node("b", "alpine", 2),
        node("S", "unmanaged_switch", 3),
        node("out", "external_connector"),
        node("apart", "alpine"),
        links=[link("a/i0", "S/i0"), link("b/i0", "S/i1"), link("S/i2", "out/i0"), link("b/i1", "apart/i0")],
    )
    lab = bench.started(topology)
    assert layer3_addresses(lab, bench.cml.pace.age()) == {}
    bench.wait(LONG)
    found = layer3_addresses(lab, bench.cml.pace.age())
    assert [seen["name"] for seen in found.values()] == ["a", "b"]
    addresses = [end["ip4"][0] for seen in found.values() for end in seen["interfaces"].values()]
    assert len(addresses) == len(set(addresses)) == 2
    assert all(address.startswith("192.168.255.") for address in addresses)
    assert all(mac.startswith("52:54:00:") for seen in found.values() for mac in seen["interfaces"])


def test_a_wipe_forgets_addresses() -> None:
    bench = Bench()
    lab = bench.booted(text(node("a", "alpine"), node("out", "external_connector"), links=[link("a/i0", "out/i0")]))
    end = one(lab, "a").interfaces[0]
    before = end.operational_mac
    bench.cml.labs.stop(lab)
    bench.wait(5)
    bench.cml.labs.start(lab)
    assert end.operational_mac == before
    bench.cml.labs.stop(lab)
    bench.wait(5)
    bench.cml.labs.wipe(lab)
    assert (end.operational_mac, end.ip4) == (None, None)


def test_a_pool_limits_what_its_users_start() -> None:
    bench = Bench()
    user = bench.cml.users.add(UserCreate("ann", "secret-word"))
    (pool,) = bench.cml.pools.add(PoolCreate(label="small", licenses=4, ram=2000, users=[user.id]))
    lab, _ = bench.cml.import_lab(text(*(node(f"N{n}") for n in range(4))), user)
    with pytest.raises(CmlFull, match="ram"):
        bench.cml.labs.start(lab)
    for only in itertools.islice(lab.nodes.values(), 3):
        bench.cml.labs.start_node(lab, only)
    assert bench.cml.pool_usage(pool)["ram"] == 3 * 512
    bench.cml.pools.change(pool, PoolUpdate(ram=None, cpus=3))
    with pytest.raises(CmlFull, match="cpus"):
        bench.cml.labs.start(lab)
    bench.started()


def test_a_template_makes_a_pool_for_each_user_and_stays_while_they_do() -> None:
    bench = Bench()
    template, *made = bench.cml.pools.add(PoolCreate(label="class", licenses=3, users=["u1", "u2"], shared=False))
    assert [pool.users for pool in made] == [["u1"], ["u2"]]
    assert bench.cml.pools.children(template) == [pool.id for pool in made]
    with pytest.raises(CmlRefusal, match="template"):
        bench.cml.pools.remove(template)
    for pool in made:
        bench.cml.pools.remove(pool)
    bench.cml.pools.remove(template)
    with pytest.raises(CmlRefusal, match="not found"):
        bench.cml.pools.get(template.id)


def signed_in(bench: Bench, name: str = "ann", password: str = "secret-word") -> str:
    return bench.cml.users.sign_in(Credentials(name, password))[1]


def status(bench: Bench, token: str) -> int:
    try:
        bench.cml.users.find_by_token(token)
    except CmlRefusal as refusal:
        return refusal.status
    return 200


def test_a_token_is_good_for_a_web_session() -> None:
    bench = Bench()
    bench.cml.users.session_seconds = 300
    token = signed_in(bench, "admin", "admin")
    assert token.count(".") == 2
    bench.wait(299)
    assert status(bench, token) == 200
    bench.wait(1)
    assert (status(bench, token), status(bench, "made up")) == (401, 401)
    assert signed_in(bench, "admin", "admin") != token


def test_a_token_ends_with_a_sign_out_a_new_password_other_rights_or_the_user() -> None:
    for end in ("sign out", "password", "rights", "removal", "restart"):
        bench = Bench()
        users = bench.cml.users
        user = users.add(UserCreate("ann", "secret-word"))
        token, admins = signed_in(bench), signed_in(bench, "admin", "admin")
        match end:
            case "sign out":
                users.sign_out(user, token)
            case "password":
                users.change(user, UserUpdate(password=PasswordChange("another", "secret-word")), user)
            case "rights":
                users.change(user, UserUpdate(admin=True), users.administrator)
            case "removal":
                users.remove(user)
            case _:
                bench.cml.restart()
        assert status(bench, token) == 401
        assert status(bench, admins) == (401 if end == "restart" else 200)


def test_users_are_told_apart_and_their_passwords_checked() -> None:
    bench = Bench()
    users = bench.cml.users
    user = users.add(UserCreate("ann", "secret-word"))
    for broken, code in (
        (lambda: users.add(UserCreate("ann", "other-word")), 422),
        (lambda: users.add(UserCreate("bob", "abc")), 403),
        (lambda: users.sign_in(Credentials("ann", "wrong")), 403),
        (lambda: users.change(user, UserUpdate(password=PasswordChange("longer", "wrong")), user), 403),
        (lambda: users.remove(users.administrator), 400),
        (lambda: users.get("nobody"), 404),
    ):
        with pytest.raises(CmlRefusal) as raised:
            broken()
        assert raised.value.status == code


def test_rights_on_a_lab_come_from_owner_user_and_group() -> None:
    bench = Bench()
    users = bench.cml.users
    ann, bob = (users.add(UserCreate(name, "secret-word")) for name in ("ann", "bob"))
    lab = bench.imported()
    assert users.permissions(users.administrator, lab) == users.permissions(users.administrator, lab)
    assert users.permissions(ann, lab) == ()
    group = users.add_group(GroupCreate("class", members=[ann.id]))
    lab.associations = Associations(
        groups=[Association(group.id, ["lab_view"])], users=[Association(bob.id, ["lab_exec", "lab_view"])]
    )
    assert users.permissions(ann, lab) == ("lab_view",)
    assert users.permissions(bob, lab) == ("lab_exec", "lab_view")
    users.change_group(group, GroupUpdate(members=[bob.id], associations=[Association(lab.id, ["lab_edit"])]))
    assert users.permissions(ann, lab) == ()
    assert users.permissions(bob, lab) == ("lab_edit", "lab_exec", "lab_view")
    users.remove_group(group)
    assert bob.groups == []
    with pytest.raises(CmlRefusal, match="already exists"):
        users.add_group(GroupCreate(users.add_group(GroupCreate("again")).name))
