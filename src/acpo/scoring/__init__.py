"""Completions scored under a model: the columns of a trace."""
