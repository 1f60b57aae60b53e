"""Controllers: watch objects, decide, act once, and requeue. They use only the plane and the provider protocols."""
