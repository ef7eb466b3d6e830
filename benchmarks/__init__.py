"""The figures in the README, each measured side by side with the usual alternative."""
