"""Virtual time: the loop, simulated processes, seeded chance, faults on request."""
