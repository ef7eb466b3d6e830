"""Grade a class: its submissions, what staff decide about them, their results and files."""
