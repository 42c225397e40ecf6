"""What the hub says about itself: logs."""
