"""The commands, a file for each: what they take, what they run, and their exit codes."""
