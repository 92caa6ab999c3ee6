"""What is run by hand; a package, since some libraries install one of this name."""
