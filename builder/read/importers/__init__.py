"""One module per log format; ``builder.read.reading`` lists them."""
