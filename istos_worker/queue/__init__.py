"""The queue's owner: a pure state machine, the store that drives it, and its place on the mesh."""
