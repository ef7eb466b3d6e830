"""Exports of a folder of grades, and what other systems need to grade with this course."""
