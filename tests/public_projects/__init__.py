"""Perf tests of public projects, as their own maintainers could keep them: docs/public_projects.md says what they found."""
