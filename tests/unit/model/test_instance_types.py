"""What templates promise by their instance types."""

from lcm.model.base.capacity import Amount
from lcm.model.kinds.worker import AwsSpec, CmlSpec, LabWorkerSpec, RootVolume
from lcm.model.money.prices import HARDWARE, SHIPPED_PRICES, declared_capacity
from lcm.sim.cloud.fleet import machine_size


def spec(instance_type: str, *alternatives: str) -> LabWorkerSpec:
    aws = AwsSpec(
        instance_type=instance_type, instance_type_alternatives=alternatives, root_volume=RootVolume(size_gb=500)
    )
    return LabWorkerSpec(aws=aws, cml=CmlSpec(max_nodes_licensed=120), max_concurrent_labs=12)


def test_a_template_promises_what_its_machine_has() -> None:
    assert declared_capacity(spec("m5zn.metal")) == Amount(
        cpu_millis=48_000, memory_mb=196_608, storage_mb=512_000, nodes=120, ports=6_000, labs=12
    )


def test_of_several_types_only_what_the_smallest_has_is_promised() -> None:
    both = declared_capacity(spec("r8i.8xlarge", "c8i.12xlarge"))
    assert both is not None
    assert (both.cpu_millis, both.memory_mb) == (32_000, 96 * 1024)


def test_nothing_is_promised_for_a_type_that_is_not_known() -> None:
    assert declared_capacity(spec("x9z.metal")) is None
    assert declared_capacity(spec("m5zn.metal", "x9z.metal")) is None


def test_what_has_a_price_has_a_size() -> None:
    assert not {kind for _, kind in SHIPPED_PRICES.machines} - HARDWARE.keys()


def test_the_simulated_cloud_makes_the_default_machine_as_large() -> None:
    assert machine_size("m5zn.metal") == HARDWARE["m5zn.metal"]
