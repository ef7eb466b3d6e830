"""Render class.html: what a class did not understand, and who needs attention."""
