"""Those who ask our APIs: they book, operate, pry, listen and audit. `town` lets them all come."""
