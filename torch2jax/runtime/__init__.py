"""The state of a process that translates: the calls in progress, what replaces PyTorch functions meanwhile, caches."""
