"""Render class.html: the mistakes of a class, and the submissions that need attention."""
