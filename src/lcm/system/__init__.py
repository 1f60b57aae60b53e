"""The real machine: time, chance, logs, sockets, tasks, the data folder."""
