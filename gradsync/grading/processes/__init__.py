"""Where submissions are graded: in processes of this machine, or on a cluster."""
