"""What both sides know: events, values and frames, read as hostile input; whose a file is."""
