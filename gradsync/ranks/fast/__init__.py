"""What makes torch, cloudpickle and Python's imports faster than they are on their own."""
