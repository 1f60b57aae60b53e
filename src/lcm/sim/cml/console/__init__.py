"""What answers on the serial consoles of simulated nodes."""
