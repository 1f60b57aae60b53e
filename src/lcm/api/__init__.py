"""HTTP over the control plane; it has no rules of its own."""
