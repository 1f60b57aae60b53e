"""The price book: what is shipped, what a site says instead, and what nobody knows."""

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from lcm.model.base.errors import Invalid
from lcm.model.kinds.worker import AwsSpec, RootVolume
from lcm.model.money.prices import SHIPPED_PRICES, parse_price_file
from lcm.settings.checks import read_prices

USUAL = AwsSpec()


def test_the_usual_worker_has_a_price() -> None:
    assert SHIPPED_PRICES.hourly(USUAL.region, USUAL.instance_type) == Decimal("3.9641")
    disk = SHIPPED_PRICES.disk_hourly(USUAL.root_volume, USUAL.region)
    assert disk is not None
    assert disk == Decimal("0.488014"), "356.25 a month"


def test_iops_that_come_with_a_disk_cost_nothing() -> None:
    free, more = (
        SHIPPED_PRICES.disk_hourly(RootVolume(kind="gp3", size_gb=100, iops=iops), "us-east-1") for iops in (3000, 4000)
    )
    assert free == Decimal("0.010959")
    assert more == Decimal("0.017808")


def test_sizes_cost_as_many_times_as_they_are_larger() -> None:
    small, large = (SHIPPED_PRICES.hourly("us-west-2", f"c8i.{size}") for size in ("xlarge", "16xlarge"))
    assert small is not None
    assert large == 16 * small


@pytest.mark.parametrize(("region", "kind"), [("mars-north-1", "m5zn.metal"), ("us-east-1", "x1.enormous")])
def test_what_nobody_wrote_down_is_unknown(region: str, kind: str) -> None:
    assert SHIPPED_PRICES.hourly(region, kind) is None
    assert SHIPPED_PRICES.disk_hourly(RootVolume(), "mars-north-1") is None


def test_a_sites_own_prices_win_entry_by_entry(tmp_path: Path) -> None:
    file = tmp_path / "prices.toml"
    file.write_text("""
        [hourly.us-east-1]
        "m5zn.metal" = 2.5
        [hourly.mars-north-1]
        "m5zn.metal" = "9.99"
        [disks.mars-north-1]
        io1 = { gb_month = 1, iops_month = 0.5 }
    """)
    book = read_prices(file)
    assert book.hourly("us-east-1", "m5zn.metal") == Decimal("2.5")
    assert book.hourly("us-west-2", "m5zn.metal") == Decimal("3.9641")
    assert book.hourly("mars-north-1", "m5zn.metal") == Decimal("9.99")
    assert book.disk_hourly(RootVolume(size_gb=10, iops=20), "mars-north-1") == Decimal("0.027397")


@pytest.mark.parametrize(
    "text",
    [
        "hourly = 3",
        "[hourly.us-east-1]\nm5 = 'dear'",
        "[hourly.us-east-1]\nm5 = -1",
        "[hourly.us-east-1]\nm5 = nan",
        "[hourly.Frankfurt]\nm5 = 1",
        "[hurly.us-east-1]\nm5 = 1",
        "[disks.us-east-1]\nio1 = 3",
        "not toml",
    ],
)
def test_a_file_with_nonsense_in_it_stops_the_start(tmp_path: Path, text: str) -> None:
    file = tmp_path / "prices.toml"
    file.write_text(text)
    with pytest.raises(Invalid, match="PRICE_BOOK"):
        read_prices(file)


def test_a_file_that_is_not_there_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="cannot be read"):
        read_prices(tmp_path / "none.toml")
    assert read_prices(None) is SHIPPED_PRICES
    assert SHIPPED_PRICES.with_file(parse_price_file({})) == SHIPPED_PRICES


def test_dated_files_of_a_folder_are_valid_from_their_days_on(tmp_path: Path) -> None:
    for day, usd in (("2026-03-01", 3), ("2026-06-01", 2)):
        (tmp_path / f"{day}.toml").write_text(f'as_of = {day}\n[hourly.us-east-1]\n"m5zn.metal" = {usd}\n')
    (tmp_path / "spot.toml").write_text('[spot.us-east-1]\n"m5zn.metal" = 1.25\n')
    book = read_prices(tmp_path)
    found = [book.at(datetime(2026, month, 20, tzinfo=UTC)).hourly("us-east-1", "m5zn.metal") for month in (1, 3, 5, 6)]
    assert found == [Decimal("3.9641"), 3, 3, 2]
    assert (book.as_of, book.hourly("us-east-1", "m5zn.metal")) == (date(2026, 6, 1), Decimal(2))
    assert book.at(datetime(2026, 1, 1, tzinfo=UTC)).spot_hourly("us-east-1", "m5zn.metal") == Decimal("1.25")
    assert SHIPPED_PRICES.spot_hourly("us-east-1", "x1.enormous") is None
    (tmp_path / "again.toml").write_text("as_of = 2026-06-01\n")
    with pytest.raises(Invalid, match="same as_of"):
        read_prices(tmp_path)
