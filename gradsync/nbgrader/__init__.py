"""The course in nbgrader: its source notebooks, and autograding that runs no learner's cell."""
