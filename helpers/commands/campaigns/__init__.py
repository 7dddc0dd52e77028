"""What `make measure` can measure: a module each, with `add_options(parser)` and `run(options)`."""
