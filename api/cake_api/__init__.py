"""The HTTP service for document question answering."""
