"""Controllers: watch, decide, do one thing, say when again. They see the plane and the providers' protocols only."""
