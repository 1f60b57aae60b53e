"""Lablet Cloud Manager: fleets of Cisco Modeling Labs hypervisors, and people's labs on them, on time."""
