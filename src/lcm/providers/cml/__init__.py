"""Cisco Modeling Labs behind the `LabHost` and `Hosts` protocols."""
