"""The outside world behind protocols: `compute`, `labhost`, `artifacts`, and the vendors that stand behind each."""
