"""One translated call: how what it calls finds its rule, and its module, state and random keys."""
