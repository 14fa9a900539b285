"""Pipeline-parallel training of Divisible models."""
