"""Trusted, pure: prove from the ranks' events which ranks can never continue, and explain why."""
