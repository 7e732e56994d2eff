"""Perf tests of public projects, as their own maintainers could keep them: docs/three_projects.md is about three."""
