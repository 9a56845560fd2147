"""One module per template family."""
