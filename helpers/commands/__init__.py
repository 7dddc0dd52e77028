"""What can be run: `python -m helpers.commands.NAME`. Nothing here is imported by anything."""
