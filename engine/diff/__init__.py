"""Two runs against each other: settings, stack, batches, answers and figures."""
