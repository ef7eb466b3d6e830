"""Render results as fragments of HTML for a notebook."""
