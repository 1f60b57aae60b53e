"""What all kinds share: metadata, state machines, errors, time, capacity, selectors, events."""
