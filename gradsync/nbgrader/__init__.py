"""The course in nbgrader: its source notebooks, and grades for which no learner's cell runs."""
