"""One translated call in progress: how the functions in it find their rules, and what the call holds."""
