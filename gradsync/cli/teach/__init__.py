"""The commands of staff: hand out, grade, and author the course."""
