"""The jobs: read, transform, write. Only these modules of the pipeline do input and output."""
