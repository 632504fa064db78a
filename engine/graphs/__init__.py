"""CUDA graphs: capture and replay of device work, and the execution modes made of them."""
