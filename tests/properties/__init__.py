"""Property tests. A package, because its files are named after the same modules as those one folder up."""
