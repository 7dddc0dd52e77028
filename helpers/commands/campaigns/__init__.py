"""The campaigns of `make measure`: one module each, with `add_options(parser)` and
`run(options)`."""
