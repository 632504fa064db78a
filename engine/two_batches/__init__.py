"""Two-batch overlap: a pass as two half batches whose layers are interleaved."""
