"""Prefill from graphs: passes padded to captured sizes, in segments between attention calls or whole."""
