"""What all commands share: tables, times, names, options, the connection to an API."""
