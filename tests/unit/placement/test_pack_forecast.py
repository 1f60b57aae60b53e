"""What room will be worth, learned from the sessions that came."""

import pytest

from harness.pack_books import pool
from lcm.model.base.capacity import Amount
from lcm.placement.pack_board import PackBoard
from lcm.placement.pack_forecast import ArrivalForecast, LikelyRoom, RoomPrice

MINUTE = 60_000_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR


def add(board: PackBoard, start: int, end: int, **need: int) -> int:
    return board.add(start * MINUTE, end * MINUTE, Amount(**need))


def forecast_of_mornings(board: PackBoard, days: int) -> ArrivalForecast:
    forecast = ArrivalForecast()
    for day in range(days):
        for start in (8, 9, 10):
            begin = (day * 24 + start) * 60
            forecast.learn(board, add(board, begin, begin + 180, cpu_millis=4))
    return forecast


def price_of(board: PackBoard, forecast: ArrivalForecast, now: int) -> RoomPrice:
    return forecast.room_price(board, forecast.room_value(board, (), now), now)


def test_room_of_an_hour_that_is_busy_as_a_rule_is_worth_more() -> None:
    board = PackBoard(pool(3))
    price = price_of(board, forecast_of_mornings(board, 14), 14 * DAY)
    sums = [price.until(14 * DAY + hour * HOUR) for hour in range(25)]
    night, morning, evening = (sums[hour + 1][0] - sums[hour][0] for hour in (3, 9, 20))
    assert 0 <= night == evening < morning <= HOUR
    night, morning = (sums[hour + 1][1] - sums[hour][1] for hour in (3, 9))
    assert 0 < night < morning <= HOUR


def test_the_more_room_there_is_the_less_it_is_worth() -> None:
    prices = []
    for machines in range(3):
        board, begin = PackBoard(pool(3)), 14 * 24 * 60
        for seat in range(machines):
            board.put(add(board, begin, begin + 900, cpu_millis=1), seat)
        price = price_of(board, forecast_of_mornings(board, 14), begin * MINUTE)
        prices.append(price.until((begin + 660) * MINUTE)[0] - price.until((begin + 600) * MINUTE)[0])
    assert prices[0] > prices[1] > prices[2] > 0


def test_the_price_between_whole_hours_grows_evenly_and_late_hours_cost_as_much_as_the_last() -> None:
    price = RoomPrice(HOUR, [0.0, 1.0, 1.5], [0.0, 2.0, 6.0], [0.0, 1.0, 1.25])
    assert price.until(0) == price.until(HOUR) == (0, 0)
    assert price.until(HOUR + 30 * MINUTE) == (0.5 * HOUR, HOUR)
    assert price.until(3 * HOUR) == (1.5 * HOUR, 6 * HOUR)
    assert price.until(9 * HOUR) == ((1.5 + 6 * 0.5) * HOUR, (6 + 6 * 4) * HOUR)
    assert [price.stay(hours * HOUR) for hours in (0, 0.5, 1, 1.5, 2, 40)] == [0, 0.5, 1, 1.125, 1.25, 1.25]


def test_a_machine_that_runs_longer_is_used_longer_as_far_as_sessions_last() -> None:
    board = PackBoard(pool(3))
    price = price_of(board, forecast_of_mornings(board, 2), 2 * DAY)
    assert [price.stay(hours * HOUR) for hours in (0, 1.5, 3, 24, 80)] == [0, 0.5, 1, 1, 1]


def test_room_is_worth_more_if_what_came_would_fit_there() -> None:
    board = PackBoard(pool(3))
    thin, wide = (board.needs[add(board, 0, 60, **need)] for need in ({"cpu_millis": 4}, {"memory_mb": 4}))
    value = LikelyRoom(board.lanes, {thin: 10.0, wide: 9.0})
    tight, whole = (board.needs[add(board, 0, 60, cpu_millis=cores)] for cores in (5, 8))
    assert value.of(0) == pytest.approx(1.0)
    assert 1 > value.of(thin) > value.of(tight) > value.of(whole) > 0


def test_before_anything_came_room_is_worth_what_it_is_for_those_at_hand() -> None:
    board, forecast = PackBoard(pool(3)), ArrivalForecast()
    claim = add(board, 0, 60, cpu_millis=4)
    assert forecast.room_value(board, [claim], 0).share_of(board.needs[claim]) == 0.5
    assert price_of(board, forecast, 0).until(HOUR)[0] > 0


def test_sessions_that_take_nothing_are_learned_of_too() -> None:
    board, forecast = PackBoard(pool(3)), ArrivalForecast()
    forecast.learn(board, add(board, 0, 60))
    assert price_of(board, forecast, DAY).until(DAY + HOUR)[0] == 0


def test_of_very_many_different_needs_those_that_take_little_are_forgotten() -> None:
    board, forecast = PackBoard(pool(3)._replace(capacity=Amount(cpu_millis=10_000))), ArrivalForecast()
    for size in range(1, 3_000):
        forecast.learn(board, add(board, 0, size, cpu_millis=size))
    value = forecast.room_value(board, (), DAY)
    assert value.of(0) > value.of(board.needs[add(board, 0, 60, cpu_millis=9_000)]) > 0
