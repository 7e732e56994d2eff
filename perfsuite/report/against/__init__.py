"""The reports of `perfsuite against`: their words, the Markdown and the page."""
