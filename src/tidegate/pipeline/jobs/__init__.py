"""The jobs: read, transform, write. The one place in the pipeline that does input and output."""
