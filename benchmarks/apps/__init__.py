"""One module per system: its job and its client. Run in that system's own environment."""
