"""Click commands: the only package that joins `supervisor` to the rest."""
