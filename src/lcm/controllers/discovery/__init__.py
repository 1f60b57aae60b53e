"""Machines in the cloud that have no record: strangers and orphans."""
