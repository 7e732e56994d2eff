"""Comparisons with the implementations that published the models, where those are installed."""
