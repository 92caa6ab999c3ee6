"""PyTorch's autograd within translated code: the tape, `.backward()`, custom functions, hooks, forward mode."""
