"""Programs of this project that call models of others."""
