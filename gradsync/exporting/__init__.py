"""Exports of a folder of grades, and files for grading this course in other systems."""
