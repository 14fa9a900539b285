"""The command ``divisible``: its subcommands are in `main` and `snapshots`."""
