"""HTTP over the control plane; no rules of its own."""
