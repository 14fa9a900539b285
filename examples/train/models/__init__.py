"""Models as lists of layers, a module each."""
