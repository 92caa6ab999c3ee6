"""Loops in a graph: identical iterations (*turns*) become one `lax.scan`."""
