"""Those who call our APIs: they book, operate, pry, listen and audit. `town` starts them all."""
