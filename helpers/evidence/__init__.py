"""Evidence from the hardware, stored beside the records: a module for each file, which reads it for
notebooks and tests and writes it for `make evidence`."""
