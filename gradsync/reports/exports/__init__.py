"""Exports of a class's results for other systems; each `render` is a pure function to a text."""
