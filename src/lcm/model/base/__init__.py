"""What every kind of document shares: metadata, state machines, errors, quantities, capacity, selectors, events."""
