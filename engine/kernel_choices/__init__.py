"""Which kernels compute products of few tokens: tables of measured plans, and where such a table is found."""
