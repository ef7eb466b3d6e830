"""The commands for any training script: review it, launch it, look at the machine."""
