"""Programs for processes that have no PyTorch."""
