"""Programs that show the package at work. Each runs with one command and is run by a test."""
