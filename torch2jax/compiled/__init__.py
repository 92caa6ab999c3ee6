"""Parts of a program that are compiled once, where Python around them runs as it is."""
