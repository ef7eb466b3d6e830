"""The commands of staff: write, release and grade the course."""
