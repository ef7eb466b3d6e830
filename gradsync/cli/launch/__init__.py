"""The commands for any training script: review it, launch it, check the machine."""
