"""One translated call in progress: how what its code calls finds its rule, and what the call holds."""
