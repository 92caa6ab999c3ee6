"""Parts of a program that are compiled once, while the Python code around them runs as usual."""
