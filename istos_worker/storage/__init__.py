"""One module per medium behind one protocol (storage.protocol)."""
