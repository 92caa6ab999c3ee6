"""Rules: the table of them, and the code that runs around the body of each."""
