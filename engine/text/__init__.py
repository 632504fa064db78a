"""Text in and out: tokenizers, chat templates, incremental detokenisation.

Knows nothing of models or torch.
"""
