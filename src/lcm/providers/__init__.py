"""The outside world behind protocols (`protocols`), and the vendors behind each: `aws`, `cml`, `local`."""
