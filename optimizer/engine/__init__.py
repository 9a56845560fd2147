"""The optimization engine: pure Python, never imports django, usable from a shell, a worker or a test."""
