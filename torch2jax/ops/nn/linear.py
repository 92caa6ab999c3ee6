"""Linear and bilinear layers."""
