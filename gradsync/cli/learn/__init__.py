"""The commands of learners, on their own files."""
