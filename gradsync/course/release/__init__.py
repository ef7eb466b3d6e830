"""The learners' copy of a course: its files, without solutions and hidden tests."""
