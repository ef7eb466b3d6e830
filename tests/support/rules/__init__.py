"""Pure functions from evidence to `Diagnosis`, for the mistakes that this course recognises."""
