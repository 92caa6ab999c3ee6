"""Parts of a program that are compiled, where Python around them runs as it is."""
