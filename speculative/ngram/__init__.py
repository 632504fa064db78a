"""Drafts by looking things up: the request's own tokens, and a shared corpus. Needs no draft model."""
