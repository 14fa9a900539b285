"""Models for pipeline-parallel training: lists of layers that can be cut."""
