"""Commands for a course's staff: hand out the course, and export its grades."""
