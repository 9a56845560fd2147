"""Reading traces: bytes in, columns out, whatever state the file is in."""
