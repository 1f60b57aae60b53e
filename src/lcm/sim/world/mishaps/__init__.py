"""What goes wrong, by the dice. Each mishap is a small function that begins something and mends it; `table` has all."""
