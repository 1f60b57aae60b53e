"""The command line, `lcm`."""
