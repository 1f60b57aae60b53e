"""The node definitions that CML 2.9 ships, with their default sizes.

Used to derive a lab's needs while no worker has reported its own definitions, and by the simulator. A disk of 0 means
that CML declares none: the node runs on a thin clone of its image.
"""

from collections.abc import Iterable, Mapping
from typing import Final, Protocol

from lcm.model.base.resource import Part


class NodeSize(Protocol):
    """The size of a node whose lab file sets none."""

    @property
    def cpus(self) -> float:
        """Whole or fractional cores."""
        ...

    @property
    def ram_mb(self) -> int:
        """Memory in MB."""
        ...

    @property
    def boot_disk_gb(self) -> float:
        """The boot disk, in GB."""
        ...

    @property
    def data_volume_gb(self) -> float:
        """The second disk, in GB."""
        ...


class FixedNodeSize(Part):
    """A node size whose values default to zero."""

    cpus: float = 0.0
    ram_mb: int = 0
    boot_disk_gb: float = 0.0
    data_volume_gb: float = 0.0


class ShippedNode(Part):
    """One node definition of CML: its size, driver, ports and interfaces."""

    definition_id: str
    nature: str
    driver: str
    cpus: float
    ram_mb: int
    boot_timeout_seconds: int
    serial_ports: int
    interfaces: tuple[str, ...]
    default_interfaces: int
    boot_disk_gb: float = 0.0
    data_volume_gb: float = 0.0
    has_loopback: bool = False
    has_vnc: bool = False
    image_definitions: tuple[str, ...] = ()

    @property
    def disk_gb(self) -> float:
        """Both disks together."""
        return self.boot_disk_gb + self.data_volume_gb


def _port_names(prefix: str, count: int, *, first: int = 0) -> tuple[str, ...]:
    return tuple(f"{prefix}{number}" for number in range(first, first + count))


def _slot_port_names(prefix: str, slots: int, each: int) -> tuple[str, ...]:
    return tuple(f"{prefix}{slot}/{port}" for slot in range(slots) for port in range(each))


def _router(definition_id: str, *, cpus: float = 1, ram_mb: int, image: str = "", seconds: int = 250) -> ShippedNode:
    """Return the definition of a virtual IOS XE router."""
    return ShippedNode(
        definition_id=definition_id,
        nature="router",
        driver="kvm",
        cpus=cpus,
        ram_mb=ram_mb,
        boot_timeout_seconds=seconds,
        serial_ports=2,
        interfaces=_port_names("GigabitEthernet", 26, first=1),
        default_interfaces=4,
        has_loopback=True,
        image_definitions=(image,) if image else (),
    )


def _ios(definition_id: str, *, nature: str, ram_mb: int, image: str, seconds: int) -> ShippedNode:
    """Return the definition of classic IOS, as a router or as a switch."""
    return ShippedNode(
        definition_id=definition_id,
        nature=nature,
        driver="kvm",
        cpus=1,
        ram_mb=ram_mb,
        boot_timeout_seconds=seconds,
        serial_ports=2,
        interfaces=_slot_port_names("GigabitEthernet", 4, 4),
        default_interfaces=4,
        has_loopback=True,
        image_definitions=(image,),
    )


def _iol(definition_id: str, *, nature: str, image: str) -> ShippedNode:
    """Return the definition of IOS on Linux, which CML runs as a process on one core."""
    return ShippedNode(
        definition_id=definition_id,
        nature=nature,
        driver="iol",
        cpus=1,
        ram_mb=1_024,
        boot_timeout_seconds=30,
        serial_ports=1,
        interfaces=_slot_port_names("Ethernet", 8, 4),
        default_interfaces=4,
        has_loopback=True,
        image_definitions=(image,),
    )


def _cat9000(definition_id: str, *, ram_mb: int, image: str) -> ShippedNode:
    return ShippedNode(
        definition_id=definition_id,
        nature="switch",
        driver="kvm",
        cpus=4,
        ram_mb=ram_mb,
        boot_timeout_seconds=600,
        serial_ports=2,
        interfaces=("GigabitEthernet0/0", *_port_names("GigabitEthernet1/0/", 24, first=1)),
        default_interfaces=25,
        has_loopback=True,
        image_definitions=(image,),
    )


def _linux(
    definition_id: str,
    *,
    ram_mb: int,
    disk_gb: float,
    interfaces: tuple[str, ...],
    image: str,
    seconds: int = 60,
    count: int = 1,
    vnc: bool = False,
) -> ShippedNode:
    return ShippedNode(
        definition_id=definition_id,
        nature="server",
        driver="kvm",
        cpus=1,
        ram_mb=ram_mb,
        boot_disk_gb=disk_gb,
        boot_timeout_seconds=seconds,
        serial_ports=1,
        interfaces=interfaces,
        default_interfaces=count,
        has_vnc=vnc,
        image_definitions=(image,),
    )


def _container(
    definition_id: str, *, ram_mb: int, nature: str = "server", count: int = 4, seconds: int = 30, consoles: int = 2
) -> ShippedNode:
    return ShippedNode(
        definition_id=definition_id,
        nature=nature,
        driver="docker",
        cpus=1,
        ram_mb=ram_mb,
        boot_timeout_seconds=seconds,
        serial_ports=consoles,
        interfaces=_port_names("eth", max(count, 4)),
        default_interfaces=count,
    )


def _sdwan(definition_id: str, *, cpus: float, ram_mb: int, data_gb: float = 0.0, seconds: int = 300) -> ShippedNode:
    return ShippedNode(
        definition_id=definition_id,
        nature="server",
        driver="kvm",
        cpus=cpus,
        ram_mb=ram_mb,
        data_volume_gb=data_gb,
        boot_timeout_seconds=seconds,
        serial_ports=1,
        interfaces=_port_names("eth", 32),
        default_interfaces=4,
    )


def _host_network(definition_id: str, *, nature: str, ports: int, count: int) -> ShippedNode:
    """Return the definition of a node that CML makes from the host's own network: it costs nothing."""
    return ShippedNode(
        definition_id=definition_id,
        nature=nature,
        driver="none",
        cpus=0,
        ram_mb=0,
        boot_timeout_seconds=5,
        serial_ports=0,
        interfaces=_port_names("port", ports) if ports > 1 else ("port",),
        default_interfaces=count,
    )


def _index_by_id(nodes: Iterable[ShippedNode]) -> Mapping[str, ShippedNode]:
    return {node.definition_id: node for node in nodes}


NO_SIZE: Final = FixedNodeSize()
SHIPPED_NODES: Final = _index_by_id(
    [
        _ios("iosv", nature="router", ram_mb=512, image="iosv-159-3-m8", seconds=180),
        _ios("iosvl2", nature="switch", ram_mb=768, image="iosvl2-2020", seconds=300),
        _iol("iol-xe", nature="router", image="iol-xe-17-12-01"),
        _iol("ioll2-xe", nature="switch", image="ioll2-xe-17-12-01"),
        _router("csr1000v", ram_mb=3_072, image="csr1000v-17-03-08a"),
        _router("cat8000v", ram_mb=4_096, image="cat8000v-17-13-01a"),
        _router("cat-sdwan-edge", cpus=2, ram_mb=5_120),
        _cat9000("cat9000v-q200", ram_mb=12_288, image="cat9000v-q200-17-12-01prd9"),
        _cat9000("cat9000v-uadp", ram_mb=18_432, image="cat9000v-uadp-17-12-01prd9"),
        ShippedNode(
            definition_id="iosxrv9000",
            nature="router",
            driver="kvm",
            cpus=4,
            ram_mb=20_480,
            boot_timeout_seconds=3_600,
            serial_ports=4,
            interfaces=("MgmtEth0/RP0/CPU0/0", "donotuse1", "donotuse2", *_port_names("GigabitEthernet0/0/0/", 31)),
            default_interfaces=4,
            has_loopback=True,
            image_definitions=("iosxrv9000-07-11-1",),
        ),
        ShippedNode(
            definition_id="nxosv9000",
            nature="switch",
            driver="kvm",
            cpus=2,
            ram_mb=12_288,
            boot_timeout_seconds=480,
            serial_ports=2,
            interfaces=("mgmt0", *_port_names("Ethernet1/", 64, first=1)),
            default_interfaces=4,
            has_loopback=True,
            image_definitions=("nxosv9300-10-4-2-f",),
        ),
        ShippedNode(
            definition_id="asav",
            nature="firewall",
            driver="kvm",
            cpus=1,
            ram_mb=2_048,
            boot_timeout_seconds=120,
            serial_ports=1,
            interfaces=("Management0/0", *_port_names("GigabitEthernet0/", 9)),
            default_interfaces=2,
            image_definitions=("asav-9-20-2",),
        ),
        ShippedNode(
            definition_id="ftdv",
            nature="firewall",
            driver="kvm",
            cpus=4,
            ram_mb=8_192,
            boot_timeout_seconds=300,
            serial_ports=1,
            interfaces=("Management0/0", "donotuse1", *_port_names("GigabitEthernet0/", 8)),
            default_interfaces=4,
        ),
        ShippedNode(
            definition_id="fmcv",
            nature="server",
            driver="kvm",
            cpus=4,
            ram_mb=32_768,
            data_volume_gb=256,
            boot_timeout_seconds=1_800,
            serial_ports=1,
            interfaces=("eth0",),
            default_interfaces=1,
        ),
        _sdwan("cat-sdwan-manager", cpus=8, ram_mb=32_768, data_gb=256),
        _sdwan("cat-sdwan-controller", cpus=2, ram_mb=4_096),
        _sdwan("cat-sdwan-validator", cpus=2, ram_mb=4_096),
        _sdwan("cat-sdwan-vedge", cpus=2, ram_mb=2_048, seconds=120),
        _linux(
            "alpine", ram_mb=512, disk_gb=16, interfaces=_port_names("eth", 4), image="alpine-base-3-19-1", vnc=True
        ),
        _linux(
            "desktop", ram_mb=512, disk_gb=16, interfaces=_port_names("eth", 4), image="alpine-desktop-3-19-1", vnc=True
        ),
        _linux(
            "server",
            ram_mb=128,
            disk_gb=16,
            interfaces=_port_names("eth", 10),
            image="server-tcl-14-0",
            seconds=20,
            vnc=True,
        ),
        _linux(
            "ubuntu",
            ram_mb=2_048,
            disk_gb=64,
            interfaces=_port_names("ens", 8, first=2),
            image="ubuntu-22-04-20240126",
            seconds=180,
        ),
        _linux("trex", ram_mb=512, disk_gb=0, interfaces=_port_names("eth", 3), image="alpine-trex-3-19-1", count=2),
        _linux(
            "wan_emulator",
            ram_mb=512,
            disk_gb=0,
            interfaces=_port_names("eth", 2),
            image="alpine-wanem-3-19-1",
            count=2,
        ),
        _container("chrome", ram_mb=2_048, nature="host", count=1),
        _container("firefox", ram_mb=2_048, nature="host", count=1),
        _container("splunk", ram_mb=4_096, nature="host", count=1, seconds=60),
        _container("dnsmasq", ram_mb=512),
        _container("frr", ram_mb=256, nature="router"),
        _container("ios-xrd-control-plane", ram_mb=2_048, nature="router", seconds=3_600),
        _container("net-tools", ram_mb=512, consoles=1),
        _container("nginx", ram_mb=256, count=1),
        _container("radius", ram_mb=512),
        _container("syslog", ram_mb=512),
        _container("tacplus", ram_mb=512),
        _container("thousandeyes-ea", ram_mb=2_048, count=1),
        _host_network("external_connector", nature="external_connector", ports=1, count=1),
        _host_network("unmanaged_switch", nature="switch", ports=32, count=8),
    ]
)
"""Every shipped definition by its id."""
