"""What goes wrong at random. Each mishap is a small function that begins something and mends it; `table` has all."""
