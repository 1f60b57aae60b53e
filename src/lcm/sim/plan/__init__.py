"""The planner: a timetable is played in the simulated world, before anybody books it."""
