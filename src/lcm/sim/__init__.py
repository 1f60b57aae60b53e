"""The production code in a made-up world: virtual time, seeded chance, hosts that die at any await."""
