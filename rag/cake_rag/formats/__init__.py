"""One file for each document format; ``cake_rag.ingest`` chooses among them by content."""
