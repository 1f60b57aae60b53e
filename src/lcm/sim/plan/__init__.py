"""The planner: a timetable is played in a simulated world before anybody books it."""
