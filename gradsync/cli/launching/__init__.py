"""Commands that run training on several ranks, and say what that costs."""
