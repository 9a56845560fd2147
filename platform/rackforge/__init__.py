"""The Django project: settings, accounts, audit, API plumbing, process management."""

__version__ = "0.1.0"
